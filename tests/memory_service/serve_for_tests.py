"""The service with the tests' encoder, as a process; arguments: STORE PORT_FILE [SECONDS_PER_REFERENCE [BUNDLE]]."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from memory_service.api.server import run, serve_until_signal
from memory_service.ops.logs import configure_logs
from memory_service.settings import Settings
from memory_service.write.encoder import EncodedReferences
from tests.memory_service.encoders import HashEncoder


class Unhurried(HashEncoder):
    """Takes its time for every reference, as a model does."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        time.sleep(self._seconds * len(references))
        return super().encode(references)


if __name__ == "__main__":
    store, port_file, *more = sys.argv[1:]
    configure_logs("info")
    settings = Settings(
        listen=os.environ.get("MEMORY_SERVICE_LISTEN", "127.0.0.1:0"),
        store=store if "://" in store else f"chdb://{store}",
        port_file=Path(port_file),
        ingest_batch_references=8,
        shutdown_grace_s=10.0,
        bundle=Path(more[1]) if len(more) > 1 else None,
    )
    run(serve_until_signal(settings, lambda: Unhurried(float(more[0]) if more else 0.0)))
