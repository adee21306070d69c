"""`GatheredTables`: gather, matrix product, placing; for a codec that is too wide to be folded.

The product is numpy's, which works at the processor's peak, on the thread that asks. The library does what is around
it: it takes the codewords that codes name, without the coordinates that are always zero, and puts the vectors, with
their mean, where a memory has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memory_model.codec.blas import ON_ONE_THREAD
from memory_model.codec.native.library import Library
from memory_model.codec.tables import PlacedCodes, ProductTables

_SLACK = 8  # floats that decode.c copies at once


class GatheredTables:
    """Decodes codes of one block without a coarse stage. Thread-safe: nothing changes after it is made."""

    name = "gather and product"

    def __init__(self, tables: ProductTables, library: Library) -> None:
        self._library = library
        parts, words = tables.codewords.shape[1:3]
        used = tables.codewords[0].any(axis=1)  # [parts, width]
        order = np.argsort(~used, axis=1, kind="stable")  # the used coordinates of each part first
        packed = np.take_along_axis(tables.codewords[0], order[:, None], axis=2)
        slot = int(used.sum(1).max(initial=0)) or 1
        self._codewords = np.zeros(parts * words * slot + _SLACK, np.float32)
        self._codewords[:-_SLACK] = packed[:, :, :slot].ravel()
        self._widths = used.sum(1).astype(np.int64)
        self._bits, self._used = tables.bits, int(used.sum())
        self._basis = np.ascontiguousarray(tables.basis[0][np.flatnonzero(used)])
        self._mean = np.ascontiguousarray(tables.mean[0])

    @staticmethod
    def suits(tables: ProductTables) -> bool:
        """Whether it is one block without a coarse stage."""
        return len(tables.mean) == 1 and tables.coarse is None

    def decode_into(self, pieces: Sequence[PlacedCodes]) -> None:
        """Write the vectors of all codes to their rows; one product for all."""
        codes = pieces[0].codes if len(pieces) == 1 else np.concatenate([piece.codes for piece in pieces])
        words = np.empty((len(codes), self._used + _SLACK), np.float32)
        self._library.gather(codes, self._bits, self._codewords, self._widths, words)
        with ON_ONE_THREAD:
            vectors = words[:, : self._used] @ self._basis
        first = 0
        for piece in pieces:
            end = first + len(piece.codes)
            self._library.place(vectors[first:end], self._mean, piece.places, piece.rows)
            first = end
