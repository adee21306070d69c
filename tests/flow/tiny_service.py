"""The real service with a tiny model and the codec that loses nothing, also as a process: STORE PORT_FILE BUNDLE."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from memory_model.bundle import Bundle
from memory_model.codec.payload import ExplicitMemory
from memory_model.embedder import Embedder
from memory_model.models.load import LoadedModel
from memory_model.references import split
from memory_service.api.server import serve_until_signal
from memory_service.ops.logs import configure_logs
from memory_service.settings import Settings
from memory_service.stores.identity import WriterIdentity
from memory_service.write.encoder import EncodedReferences, EncoderDescription
from tests.edge_client.tiny_bundle import format_of, tiny_loaded

START_S = 120.0


class TinyEncoder:
    """The service's encoder with the tiny model and the codec that loses nothing."""

    def __init__(self, loaded: LoadedModel, embedder: Embedder) -> None:
        self.loaded, self.embedder, self.format = loaded, embedder, format_of(loaded)
        ids, memory = self.format.identity, loaded.config.memory
        self.description = EncoderDescription(
            WriterIdentity(
                ids.model_id, ids.codec_id, ids.memory_format_id, embedder.embedder_id, dimension=embedder.dim
            ),
            memory.memories_per_chunk,
            memory.reference_tokens,
            memory.chunk_tokens,
            json.dumps(loaded.config.to_dict()),
            self.format.payload_bytes(memory.reference_tokens),
        )

    def split(self, text: str, title: str, overlap_tokens: int = 0) -> list[str]:
        return split(text, title, self.count_tokens, self.description.reference_tokens, overlap_tokens)

    def count_tokens(self, text: str) -> int:
        return self.loaded.tokenizer.count(text)

    def embed(self, references: Sequence[str]) -> np.ndarray:
        return self.embedder.embed(references)

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        return EncodedReferences(self.embed(references), self.format.encode(self.write(references)))

    def write(self, references: Sequence[str]) -> list[ExplicitMemory]:
        return self.loaded.writer.write(references)

    def check_payload(self, payload: bytes) -> None:
        self.format.check(payload)


@contextmanager
def tiny_service(folder: Path, bundle: Path) -> Iterator[str]:
    """Such a service as a process while the block lasts; yields its address."""
    port_file, log = folder / "port", folder / "service.log"
    command = [sys.executable, "-m", __name__, str(folder / "store"), str(port_file), str(bundle)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2])
    try:
        deadline = time.monotonic() + START_S
        while not (port_file.is_file() and port_file.read_text()):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{int(port_file.read_text())}"
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    store, port_file, bundle = map(Path, sys.argv[1:])
    configure_logs("info")
    settings = Settings(listen="127.0.0.1:0", store=f"chdb://{store}", port_file=port_file, shutdown_grace_s=5.0)
    encoder = TinyEncoder(tiny_loaded(), Bundle.open(bundle).embedder())
    asyncio.run(serve_until_signal(settings, lambda: encoder))
