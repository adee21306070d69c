"""Ingestion against its limit: references a second through the service, and through the model's forward pass alone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grpc
from pydantic import Field

from deploy.bench.intervals import interleave, median_interval, ratio_interval
from deploy.bench.knowledge import FACTBOOK
from deploy.bench.processes import side_process
from deploy.bench.scenario import (
    BUILD,
    Keys,
    Scenario,
    ScenarioFailed,
    Settings,
    Sheet,
    directions,
    figure,
    with_intervals,
)
from memory_model.references import split
from memory_service.api.server import Server, run
from memory_service.ops.logs import configure_logs
from memory_service.settings import Settings as ServiceSettings
from memory_service.stores import open_store
from memory_service.write.encoder import ModelEncoder
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc


class IngestSettings(Settings):
    """references: about so many a round. threads: of the model, in the services and alone. engines: of the stores.

    The figures without a store's name are those of the first one.
    """

    rounds: int = 5
    threads: int = Field(default=2, ge=1, le=256)
    references: int = Field(default=150, ge=1, le=1000)
    engines: tuple[Literal["chdb", "file"], ...] = Field(default=("chdb", "file"), min_length=1)


def measure(settings: IngestSettings) -> Keys:
    """Each round takes other documents; services and forward pass get the same ones, in turn."""
    import torch

    from memory_model.models.folder import ModelFolder
    from memory_model.models.load import load_model
    from memory_model.nn.writing import MemoryWriter

    torch.set_num_threads(settings.threads)
    loaded = load_model(ModelFolder.open(None))
    writer = MemoryWriter(loaded.model, loaded.tokenizer)
    tokens = loaded.config.memory.reference_tokens
    rounds = settings.rounds + settings.warm_up
    given = [
        portion
        for portion, _ in zip(
            portions(loaded.tokenizer.count, tokens, settings.references), range(rounds), strict=False
        )
    ]
    if len(given) < rounds:
        raise ScenarioFailed(
            f"the documents are enough for {len(given)} rounds of {settings.references} references: take fewer"
        )
    BUILD.mkdir(parents=True, exist_ok=True)

    def through(address: str, number: int) -> float:
        portion = given[number + settings.warm_up]
        return _count(portion) / ingest(address, portion)

    def model_alone(number: int) -> float:
        texts = [reference for text in given[number + settings.warm_up] for reference in text.references]
        began = time.perf_counter()
        writer.write(texts)
        return len(texts) / (time.perf_counter() - began)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=BUILD))).resolve()
        variants: dict[str, Callable[[int], float]] = {"model": model_alone}
        for engine in settings.engines:
            url = f"{engine}://{folder / engine}"
            address = stack.enter_context(side_process(serve_model, url, settings.bundle, settings.threads))
            variants[engine] = functools.partial(through, address)
        writer.write(given[0][0].references[:1])  # a service has done so before it serves
        samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label="ingesting")
    limit = samples.pop("model")
    keys: Keys = {
        "engine": settings.engines[0],
        "threads": settings.threads,
        "references": sum(map(_count, given[settings.warm_up :])),
        "batch_tokens": writer.batch_tokens,
        "stores": {
            engine: with_intervals(
                {}, references_per_s=median_interval(rates), ratio=ratio_interval(rates, limit)
            )
            for engine, rates in samples.items()
        },
    }
    first = samples[settings.engines[0]]
    return with_intervals(
        keys,
        references_per_s=median_interval(first),
        model_bound_references_per_s=median_interval(limit),
        ratio=ratio_interval(first, limit),
    )


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
    run(_serve(ready, ServiceSettings(**values)))


async def _serve(ready: Callable[[int], None], settings: ServiceSettings) -> None:
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


def _count(texts: list[Text]) -> int:
    return sum(len(text.references) for text in texts)


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a store."""
    limit = figure(result, "model_bound_references_per_s")
    rows = [
        (f"{engine}://", figure(keys, "references_per_s"), limit, figure(keys, "ratio"))
        for engine, keys in result["stores"].items()
    ]
    columns = ("store", "references/s", "forward pass alone", "ratio")
    title = f"ingestion, {result['references']} references, {result['threads']} threads"
    note = (
        "From the first document sent to the last acknowledgement of a durable, searchable memory; beside it the same"
        " references through the model's batched forward pass alone, which no ingestion can exceed."
    )
    return [Sheet(title, columns, rows, note)]


SCENARIO = Scenario(
    name="ingest",
    summary="Documents into memories through a real service, against the model's own batched forward pass.",
    settings=IngestSettings,
    measure=measure,
    promised=("references_per_s", "model_bound_references_per_s", "ratio"),
    directions=directions(
        more="references_per_s ratio",
        none="model_bound_references_per_s",
    ),
    sheets=sheets,
    quick={"rounds": 1, "warm_up": 0},
)
