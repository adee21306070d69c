"""Texts to what is stored: the interface of an encoder, and the check of vectors, its own and the wire's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from memory_service.errors import VectorNotFinite, WrongVectorSize
from memory_service.stores.store import WriterIdentity

_UNIT = 1e-6
"""How far from 1 the squared length of a vector may be that is taken as it is: float32 does no better."""


@dataclass(frozen=True)
class EncoderDescription:
    """What clients must know of the encoder; model_config_json is memory3.config.ModelConfig.to_dict as JSON."""

    identity: WriterIdentity
    memories_per_chunk: int
    reference_tokens: int
    chunk_tokens: int
    model_config_json: str
    payload_bytes: int
    """Of a reference of full length: the largest there is."""
    earlier: tuple[WriterIdentity, ...] = ()
    """Whose payloads `Encoder.own` translates."""


@dataclass(frozen=True)
class EncodedReferences:
    """vectors: float32 [n, dimension]; payloads: n byte strings as MemoryFormat writes them."""

    vectors: np.ndarray
    payloads: list[bytes]


class Encoder(Protocol):
    """Turns references into vectors and payloads.

    Contract. `encode` is called from one thread at a time, all others may be called from any thread.
    They return as many rows and payloads as they were given references, in their order, and do not change their
    argument.
    """

    @property
    def description(self) -> EncoderDescription:
        """Ids and shape; constant."""

    def count_tokens(self, text: str) -> int:
        """Length of a text in tokens of the model."""

    def embed(self, references: Sequence[str]) -> np.ndarray:
        """Vectors alone, float32 [n, dimension]."""

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        """Embeds, writes and compresses."""

    def own(self, payload: bytes | memoryview) -> bytes | memoryview:
        """A stored payload as this model's: as it is, or translated. Raises a mismatch for others."""

    def is_own(self, payload: bytes | memoryview) -> bool:
        """Whether this model and codec wrote it."""

    def check_payload(self, payload: bytes) -> None:
        """Raises PayloadCorrupt for bytes that are no payload and a mismatch for one that another model wrote."""


def read_vectors(raw: bytes, dimension: int, *, declared: int = 0, field: str = "query_vectors") -> np.ndarray:
    """Vectors of the wire, little-endian, as unit vectors float32 [n, dimension], n >= 1, of `raw`.

    `declared` is the length the client claims, 0 for none. Raises WrongVectorSize when the bytes do not fill whole
    rows or the claim is another length; VectorNotFinite for NaN, infinity, or a zero vector, which has no direction.
    """
    if declared not in (0, dimension):
        raise WrongVectorSize(
            f"vectors of length {declared} came, this knowledge base's embedder makes {dimension}",
            field="dimension",
            expected=dimension,
            found=declared,
        )
    if not raw or len(raw) % (4 * dimension):
        raise WrongVectorSize(
            f"{len(raw)} bytes of vectors came, expected a positive multiple of {4 * dimension}"
            f" ({dimension} float32 each)",
            field=field,
            expected=4 * dimension,
            found=len(raw),
        )
    vectors = np.frombuffer(raw, "<f4").reshape(-1, dimension)
    if len(vectors) == 1:
        with np.errstate(over="ignore", invalid="ignore"):
            squared = float(np.dot(vectors[0], vectors[0]))
        if abs(squared - 1.0) < _UNIT:  # as embedders make them: nothing to do, and nothing that is not finite
            return vectors
    # Squares of float32 fit into float64, so a norm is finite exactly when all of its numbers are.
    wide = vectors.astype(np.float64)
    norms = np.sqrt((wide * wide).sum(axis=1))
    bad = ~(np.isfinite(norms) & (norms > 0))
    if bad.any():
        row = int(bad.argmax())
        what = "is zero" if norms[row] == 0 else "holds NaN or infinity"
        raise VectorNotFinite(f"vector {row} {what}", field=field, row=row)
    return (vectors / norms[:, None]).astype(np.float32)


def checked(encoded: EncodedReferences, count: int, dimension: int) -> EncodedReferences:
    """The encoder's work, if it kept its contract; a NaN from a broken model must not reach the index."""
    if encoded.vectors.shape != (count, dimension) or len(encoded.payloads) != count:
        raise ValueError(f"the encoder: {encoded.vectors.shape}, {len(encoded.payloads)} payloads for {count} texts")
    vectors = read_vectors(np.ascontiguousarray(encoded.vectors, "<f4").tobytes(), dimension, field="encoder")
    return EncodedReferences(vectors, encoded.payloads)
