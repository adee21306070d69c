"""The service itself on one of its stores, filled with a collection: the real server, without a model."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from deploy.bench.service.data import PAYLOAD_BYTES, Collection, K
from memory_model.errors import InvalidInput
from memory_service.api.server import Server, keep_what_is_loaded, run
from memory_service.ops.logs import configure_logs
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE, Settings
from memory_service.stores import NewDocument, NewReference, WriterIdentity, open_store
from memory_service.write.encoder import EncodedReferences, Encoder, EncoderDescription

_BATCH = 4096
_FILLED = "the benchmark's stores are filled directly: nothing is ingested or embedded here"


class NoEncoder:
    """Stands for the model where nothing is ingested."""

    def __init__(self, dimension: int) -> None:
        model, codec, memory_format, embedder = (
            hashlib.sha256(name.encode()).hexdigest() for name in ("model", "codec", "format", "embedder")
        )
        self.description = EncoderDescription(
            identity=WriterIdentity(model, codec, memory_format, embedder, dimension),
            memories_per_chunk=K,
            reference_tokens=128,
            chunk_tokens=64,
            model_config_json="{}",
            payload_bytes=PAYLOAD_BYTES,
        )

    def split(self, text: str, title: str, overlap_tokens: int = 0) -> list[str]:
        return [text]

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def embed(self, references: Sequence[str]) -> np.ndarray:
        raise InvalidInput(_FILLED)

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        raise InvalidInput(_FILLED)

    def check_payload(self, payload: bytes) -> None:
        pass


def fill(engine: str, folder: Path, collection: Collection, progress: Callable[[int], None]) -> None:
    """Writes the collection, a document a reference; memory ids are its number and one."""
    with contextlib.closing(open_store(f"{engine}://{folder}")) as store:
        base = store.create(DEFAULT_KNOWLEDGE_BASE, "", NoEncoder(collection.dimension).description.identity)
        for first, vectors in collection.batches(_BATCH):
            progress(len(vectors))
            documents = []
            for number, vector in enumerate(vectors, first):
                payload, text = collection.payload(number), collection.text(number)
                reference = NewReference(number + 1, text, vector, payload, google_crc32c.value(payload))
                content_hash, metadata = hashlib.sha256(text.encode()).digest(), collection.metadata(number)
                documents.append(NewDocument(f"d{number}", "", metadata, content_hash, [reference]))
            store.write(base, documents)


def serve_store(ready: Callable[[int], None], url: str, dimension: int) -> None:
    """Serves the store until SIGTERM."""
    configure_logs("warning")
    values: dict[str, Any] = {"listen": "127.0.0.1:0", "store": url, "warm_up": False}
    run(_serve(ready, Settings(**values), NoEncoder(dimension)))


async def _serve(ready: Callable[[int], None], settings: Settings, encoder: Encoder) -> None:
    told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_stop.set)
    server = Server(settings)
    await server.start(encoder, open_store(settings.store))
    keep_what_is_loaded()
    ready(server.port)
    await told_to_stop.wait()
    await server.stop()
