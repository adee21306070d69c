"""Encoders without a model: vectors and payloads are derived from the text's hash, so equal texts give equal ones."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memory3.errors import ModelMismatch
from memory_service.encoder import EncodedReferences, EncoderDescription
from memory_service.errors import PayloadCorrupt
from memory_service.stores.store import WriterIdentity

DIMENSION = 32
PAYLOAD_BYTES = 600


def identity_of(name: str) -> WriterIdentity:
    """The identity of an encoder with this name."""
    parts = (f"{name} {part}".encode() for part in ("model", "codec", "format", "embedder"))
    model, codec, memory_format, embedder = (hashlib.sha256(part).hexdigest() for part in parts)
    return WriterIdentity(model, codec, memory_format, embedder, DIMENSION)


def vector_of(text: str) -> np.ndarray:
    """A unit vector of DIMENSION float32 numbers."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    vector = np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)
    return vector / np.linalg.norm(vector)


def payload_of(text: str, model_id: str) -> bytes:
    """16 bytes of the model's id and PAYLOAD_BYTES random ones."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[8:16], "little")
    return bytes.fromhex(model_id)[:16] + np.random.default_rng(seed).bytes(PAYLOAD_BYTES)


class HashEncoder:
    """Implements `memory_service.encoder.Encoder`, which documents the methods."""

    def __init__(self, name: str = "test") -> None:
        self.description = EncoderDescription(
            identity=identity_of(name),
            memories_per_chunk=5,
            reference_tokens=128,
            chunk_tokens=64,
            model_config_json=json.dumps({"name": name}),
            payload_bytes=PAYLOAD_BYTES + 16,
        )
        self.encoded = 0

    def own(self, payload: bytes | memoryview) -> bytes | memoryview:
        return payload

    def is_own(self, payload: bytes | memoryview) -> bool:
        return bytes(payload[:16]) == bytes.fromhex(self.description.identity.model_id)[:16]

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def embed(self, references: Sequence[str]) -> np.ndarray:
        return np.stack([vector_of(text) for text in references])

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        self.encoded += len(references)
        return EncodedReferences(
            self.embed(references), [payload_of(t, self.description.identity.model_id) for t in references]
        )

    def check_payload(self, payload: bytes) -> None:
        expected = bytes.fromhex(self.description.identity.model_id)[:16]
        if len(payload) != PAYLOAD_BYTES + 16:
            raise PayloadCorrupt(f"a payload of {len(payload)} bytes, expected {PAYLOAD_BYTES + 16}")
        if payload[:16] != expected:
            raise ModelMismatch(payload[:16].hex(), expected.hex(), "re-ingest")


class SlowEncoder(HashEncoder):
    """Sleeps for every reference, as long as a model would take."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        time.sleep(self._seconds * len(references))
        return super().encode(references)


class CrashingEncoder(HashEncoder):
    """Writes its process id to a folder when loaded; the first process that encodes the text `deadly` is killed."""

    def __init__(self, folder: Path, deadly: str) -> None:
        super().__init__()
        self._deadly = deadly
        self._died = folder / "died"
        (folder / f"{os.getpid()}.worker").touch()

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        if self._deadly and any(self._deadly in text for text in references) and not self._died.exists():
            self._died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(references)


@dataclass(frozen=True)
class HashModel:
    """Loads the encoder in a worker process."""

    folder: Path
    deadly: str = ""
    name: str = "test"

    def __call__(self, worker: int = 0, workers: int = 1) -> HashEncoder:
        """The encoder."""
        return CrashingEncoder(self.folder, self.deadly) if self.name == "test" else HashEncoder(self.name)
