"""Vectors as they come over the wire: float32 little-endian bytes, checked and brought to unit length in one go."""

from __future__ import annotations

import numpy as np

from memory_service.errors import VectorNotFinite, WrongVectorSize

_UNIT = 1e-6
"""How far from 1 the squared length of a vector may be that is taken as it is: float32 does no better."""


def read_vectors(raw: bytes, dimension: int, *, declared: int = 0, field: str = "query_vectors") -> np.ndarray:
    """Unit vectors float32 [n, dimension], n >= 1, of `raw`.

    `declared` is the length the client claims, 0 for none. Raises WrongVectorSize when the bytes do not fill whole
    rows or the claim is another length; VectorNotFinite for NaN, infinity, or a zero vector, which has no direction.
    """
    if declared not in (0, dimension):
        raise WrongVectorSize(
            f"vectors of length {declared} came, this knowledge base's embedder makes {dimension}",
            field="dimension", expected=dimension, found=declared,
        )  # fmt: skip
    if not raw or len(raw) % (4 * dimension):
        raise WrongVectorSize(
            f"{len(raw)} bytes of vectors came, expected a positive multiple of {4 * dimension}"
            f" ({dimension} float32 each)",
            field=field, expected=4 * dimension, found=len(raw),
        )  # fmt: skip
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
