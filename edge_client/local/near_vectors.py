"""`NearVectors`: the vectors of a knowledge base as int8, compared with every query."""

from __future__ import annotations

import numpy as np

from memory3.codec.blas import one_thread
from memory3.codec.native.library import Library, installed

LEVELS, QUERY_LEVELS = 127, 2047
"""Largest numbers of a vector and of a query; sums of their products stay within int32 up to 8,000 dimensions."""
MARGIN = 50
"""Vectors found beyond the number requested, among which rounding may have changed the order."""
BLOCK = 4096
"""Vectors that are taken at a time."""


class NearVectors:
    """Vectors as int8, a quarter of their bytes, to find which are near; the caller compares those exactly.

    In the order of their ids, each with one scale. Not thread-safe. library: None computes with numpy.
    """

    def __init__(self, dimension: int, library: Library | None = installed()) -> None:
        self._library, self._count = library, 0
        self._ids, self._scales = np.zeros(0, np.int64), np.zeros(0, np.float32)
        self._rows = np.zeros((0, dimension), np.int8)

    def __len__(self) -> int:
        """Vectors."""
        return self._count

    @property
    def last_id(self) -> int:
        """The largest id, 0 without one."""
        return int(self._ids[self._count - 1]) if self._count else 0

    def add(self, ids: np.ndarray, vectors: np.ndarray) -> None:
        """Append vectors float32 [n, dimension] with ids int64 [n], which are larger than those before."""
        start, self._count = self._count, self._count + len(ids)
        if self._count > len(self._ids):  # room for half as many again, so that each is copied a few times at most
            room = self._count + self._count // 2
            for name in ("_ids", "_scales", "_rows"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old[:start], np.empty((room - start, *old.shape[1:]), old.dtype)]))
        scales = np.maximum(np.abs(vectors).max(axis=1), np.finfo(np.float32).tiny) / LEVELS
        self._ids[start : self._count], self._scales[start : self._count] = ids, scales
        self._rows[start : self._count] = np.rint(vectors / scales[:, None])

    def nearest(self, queries: np.ndarray, count: int) -> list[np.ndarray]:
        """For each unit vector float32 [q, dimension] the ids of `count` nearest and some more, in no order."""
        if (candidates := count + MARGIN) >= self._count:
            return [self._ids[: self._count]] * len(queries)
        rounded = np.rint(queries * (QUERY_LEVELS / np.abs(queries).max(axis=1, keepdims=True)))
        rows, scales = self._rows[: self._count], self._scales[: self._count]
        if self._library is not None:
            return list(self._ids[self._library.nearest(rows, scales, rounded.astype(np.int16), candidates)])
        with one_thread():
            parts = [rounded @ rows[n : n + BLOCK].T.astype(np.float32) for n in range(0, len(rows), BLOCK)]
        scores = np.concatenate(parts, axis=1) * scales
        return [self._ids[np.argpartition(-of_query, candidates)[:candidates]] for of_query in scores]
