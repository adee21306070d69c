"""Which of the two ways of decoding in C serves a codec, if any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from memory_model.codec.native.folded import FoldedTables
from memory_model.codec.native.gathered import GatheredTables
from memory_model.codec.native.library import Library
from memory_model.codec.tables import PlacedCodes, ProductTables

TOLERANCE = 1e-4
"""Largest relative error against numpy. Trained tables give 4e-5, tables with a few far larger numbers more."""
_CODES = 256

Decode = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Codes uint8 [n, code_bytes] and their blocks int64 [n] to vectors float32 [n, d]."""


class NativeDecoder(Protocol):
    """What both ways are."""

    name: str

    def decode_into(self, pieces: Sequence[PlacedCodes]) -> None:
        """Write the vectors of all codes to their rows."""


def native_decoder(tables: ProductTables, library: Library, by_numpy: Decode) -> NativeDecoder | None:
    """The way that suits the tables; None where numpy serves them better, or is the only one that is exact enough."""
    if FoldedTables.suits(tables):
        folded = FoldedTables(tables, library)
        if relative_error(folded, tables, by_numpy) <= TOLERANCE:
            return folded
    return GatheredTables(tables, library) if GatheredTables.suits(tables) else None


def relative_error(decoder: NativeDecoder, tables: ProductTables, by_numpy: Decode) -> float:
    """Length of a difference over length of its vector, mean of random codes; infinite if a number is not finite.

    Each vector counts for itself: a few that are far longer would hide what all the others lose.
    """
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (_CODES, tables.code_bytes), np.uint8)
    blocks = np.sort(rng.integers(0, len(tables.mean), _CODES))
    wanted = by_numpy(codes, blocks)
    found = np.empty((_CODES * tables.together, tables.mean.shape[1] // tables.together), np.float32)
    decoder.decode_into([PlacedCodes(codes, blocks, np.arange(len(found)), found)])
    lengths = np.linalg.norm(wanted, axis=1)
    differences = np.linalg.norm(found.reshape(wanted.shape) - wanted, axis=1)
    error = float((differences / np.where(lengths == 0, 1, lengths)).mean())
    return error if np.isfinite(error) else float("inf")
