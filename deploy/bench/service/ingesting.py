"""A service with its model, and documents sent to it: how long until all of them are acknowledged."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from deploy.bench.machine import ROOT
from memory_model.references import split
from memory_service.api.server import Server, run
from memory_service.ops.logs import configure_logs
from memory_service.settings import Settings
from memory_service.stores import open_store
from memory_service.write.encoder import ModelEncoder
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc

FACTBOOK = ROOT / "data" / "factbook.jsonl"


@dataclass(frozen=True)
class Text:
    """A document and the references that it is split into."""

    key: str
    title: str
    text: str
    references: tuple[str, ...]


def serve_model(ready: Callable[[int], None], url: str, bundle: Path, threads: int) -> None:
    """Serves the store with the default model until SIGTERM."""
    import torch

    torch.set_num_threads(threads)
    configure_logs("warning")
    values: dict[str, Any] = {"listen": "127.0.0.1:0", "store": url, "bundle": bundle}
    run(_serve(ready, Settings(**values)))


async def _serve(ready: Callable[[int], None], settings: Settings) -> None:
    told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_stop.set)
    server = Server(settings)
    await server.start(ModelEncoder(settings), open_store(settings.store))
    ready(server.port)
    await told_to_stop.wait()
    await server.stop()


def portions(count: Callable[[str], int], tokens: int, references: int) -> Iterator[list[Text]]:
    """Documents of the factbook with about as many references, portion after portion, none twice.

    count: tokens of a text. tokens: of a reference, at most.
    """
    portion: list[Text] = []
    with FACTBOOK.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            document = json.loads(line)
            parts = tuple(split(document["text"], document["title"], count, tokens))
            portion.append(Text(f"document-{number}", document["title"], document["text"], parts))
            if sum(len(text.references) for text in portion) >= references:
                yield portion
                portion = []


def ingest(address: str, texts: Sequence[Text]) -> float:
    """Seconds from the first document sent to the last acknowledgement; raises ValueError if one is refused."""
    requests = [pb.IngestRequest(start=pb.IngestStart(knowledge_base="bench", create_if_missing=True))]
    requests += [
        pb.IngestRequest(
            item=pb.IngestItem(
                sequence=number, document=pb.Document(key=text.key, title=text.title, text=text.text)
            )
        )
        for number, text in enumerate(texts, 1)
    ]
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(60)
        began = time.perf_counter()
        acknowledged = 0
        for response in ingestion_pb2_grpc.IngestionStub(channel).Ingest(iter(requests), timeout=3600):
            if response.WhichOneof("message") == "failed":
                raise ValueError(f"document {response.failed.document_key}: {response.failed.status.message}")
            acknowledged += response.WhichOneof("message") == "acknowledged"
        took = time.perf_counter() - began
    if acknowledged != len(texts):
        raise ValueError(f"{acknowledged} of {len(texts)} documents were acknowledged")
    return took
