"""Searching FAISS's graph where it lies, without FAISS: one call finds what is near, scores it and puts it in order.

Everything around the search that is Python costs as much as the search; here it is a few numbers in a struct, kept for
each thread. The order is that of `vector_index.best_of`, which does the same where there is no compiled search.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import faiss as _faiss
import numpy as np

from memory_model.codec.native.graph import WALKED_BYTES, Graph, GraphLibrary, Places
from memory_service.stores.local.living import Living

faiss: Any = _faiss
_ROWS_MORE = 4096
_threads = threading.local()


class GraphSearch:
    """A graph as it is now: made anew, under the writer's guard, whenever rows came or another graph did."""

    def __init__(self, library: GraphLibrary, graph: Graph, index: Any) -> None:
        self._library = library
        self._graph = graph
        self._index = index  # whose memory it is
        self.covered: int = graph.rows

    @classmethod
    def of(cls, index: Any, library: GraphLibrary | None) -> GraphSearch | None:
        """None where FAISS has to search: no library, or no graph of 8-bit vectors of one range and inner products."""
        if library is None or not isinstance(index, faiss.IndexHNSWSQ) or not index.ntotal:
            return None
        storage, hnsw = faiss.downcast_index(index.storage), index.hnsw
        codes, links, offsets = storage.codes, hnsw.neighbors, hnsw.offsets
        firsts, rows = hnsw.cum_nneighbor_per_level, index.ntotal
        fits = (
            storage.sq.qtype == faiss.ScalarQuantizer.QT_8bit_uniform
            and index.metric_type == faiss.METRIC_INNER_PRODUCT
            and storage.sq.trained.at(1) > 0
            and codes.size() == rows * index.d
            and offsets.size() == rows + 1
            and links.size() == offsets.at(rows)
            and firsts.size() > hnsw.max_level + 1
        )
        if not fits:
            return None
        addresses = [int(vector.data()) for vector in (codes, links, offsets, firsts)]
        return cls(library, Graph(rows, index.d, hnsw.entry_point, hnsw.max_level, *addresses), index)

    def search(
        self, vectors: np.ndarray, queries: np.ndarray, k: int, living: Living, candidates: int, proposed: int
    ) -> list[tuple[list[tuple[int, float]], int]]:
        """For each of `queries` its at most k nearest rows with scores, best first, and how many the graph proposed.

        vectors: float32 [n, dimension], contiguous; those that the graph does not have are compared one by one.
        candidates: how wide it searches; proposed: how many rows are scored with their float32 vectors.
        """
        graph, covered, rows, count = self._graph, self.covered, len(vectors), len(queries)
        candidates = max(candidates, proposed)
        place: _Place | None = getattr(_threads, "place", None)
        if place is None or place.lacks(covered, graph.dimension, candidates, count * (2 + 2 * k)):
            place = _threads.place = _Place(place, covered, graph.dimension, candidates, count * (2 + 2 * k))
        if place.vectors() is not vectors:
            place.remember(vectors)
        bits = living.bits
        self._library.search(
            graph, place.places, queries.astype(np.float32, copy=False).tobytes(), count, place.address,
            min(covered, rows), rows, None if bits is None else bits.ctypes.data, candidates, proposed, k,
            place.out_address,
        )  # fmt: skip
        answers = []
        for start in range(0, count * (2 + 2 * k), 2 + 2 * k):
            found, near = place.numbers[start : start + 2].tolist()
            first, middle = start + 2, start + 2 + k
            answers.append(
                (list(zip(place.numbers[first : first + found].tolist(),
                          place.scores[middle : middle + found].tolist(), strict=True)), near)
            )  # fmt: skip
        return answers


class _Place:
    """One thread's arrays, and the struct that names them. `numbers` and `scores` are the same bytes."""

    def __init__(self, before: _Place | None, rows: int, dimension: int, most: int, numbers: int) -> None:
        """Large enough for these and for what the one before was."""
        have = before.sizes if before else (0, 0, 0, 0)
        if rows > have[0]:
            rows += rows // 4 + _ROWS_MORE
        self.sizes: tuple[int, int, int, int] = (
            max(rows, have[0]), max(dimension, have[1]), max(most, have[2]), max(numbers, have[3]),
        )  # fmt: skip
        rows, dimension, most, numbers = self.sizes
        self._marks = np.zeros(rows, np.uint8)
        self._query = np.zeros(dimension, np.int16)
        self._walk = np.zeros(most * WALKED_BYTES, np.uint8)
        self._near = np.zeros(2 * most, np.int64), np.zeros(2 * most, np.float32)
        self.numbers = np.zeros(numbers, np.int64)
        self.scores = self.numbers.view(np.float64)
        self.out_address: int = self.numbers.ctypes.data
        arrays = (self._marks, self._query, self._walk, *self._near)
        self.places = Places(rows, 0, most, *(array.ctypes.data for array in arrays))
        self.vectors: weakref.ref[np.ndarray] | Callable[[], None] = lambda: None
        self.address = 0

    def lacks(self, rows: int, dimension: int, most: int, numbers: int) -> bool:
        """Whether something does not fit."""
        has = self.sizes
        return rows > has[0] or dimension > has[1] or most > has[2] or numbers > has[3]

    def remember(self, vectors: np.ndarray) -> None:
        """Where these lie: numpy takes longer to say so than the rest of a call. They are not kept alive."""
        self.vectors, self.address = weakref.ref(vectors), vectors.ctypes.data
