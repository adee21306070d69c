"""The service itself on one of its stores, filled with a collection: the real server, without a model."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c

from deploy.bench.service.data import PAYLOAD_BYTES, Collection
from memory_service.api.server import Server, keep_what_is_loaded, run
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE, Settings
from memory_service.stores.opening import open_store
from memory_service.stores.store import NewDocument, NewReference, WriterIdentity
from memory_service.telemetry.logs import configure_logs
from testing.encoders import HashEncoder

_BATCH = 4096


class NoModel(HashEncoder):
    """The tests' encoder, for vectors of any length and payloads of whatever bytes."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        names = ("model", "codec", "format", "embedder")  # kept stores have this identity
        model, codec, memory_format, embedder = (hashlib.sha256(name.encode()).hexdigest() for name in names)
        identity = WriterIdentity(model, codec, memory_format, embedder, dimension)
        self.description = replace(self.description, identity=identity, payload_bytes=PAYLOAD_BYTES)

    def check_payload(self, payload: bytes) -> None:
        """Takes it as it is."""


def fill(engine: str, folder: Path, collection: Collection, progress: Callable[[int], None]) -> None:
    """Writes the collection, a document a reference; memory ids are its number and one."""
    with contextlib.closing(open_store(f"{engine}://{folder}")) as store:
        base = store.create(DEFAULT_KNOWLEDGE_BASE, "", NoModel(collection.dimension).description.identity)
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
    run(_serve(ready, Settings(**values), NoModel(dimension)))


async def _serve(ready: Callable[[int], None], settings: Settings, encoder: HashEncoder) -> None:
    told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_stop.set)
    server = Server(settings)
    await server.start(encoder, open_store(settings.store))
    keep_what_is_loaded()
    ready(server.port)
    await told_to_stop.wait()
    await server.stop()
