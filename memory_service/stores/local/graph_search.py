"""Searching FAISS's graph where it lies, without FAISS: one call finds what is near, scores it and puts it in order.

Everything around the search that is Python costs as much as the search; here it is a few numbers in a struct, kept for
each thread. The order is that of `vector_index.best_of`, which does the same where there is no compiled search.
"""

from __future__ import annotations

import threading
from operator import gt
from typing import Any

import faiss as _faiss
import numpy as np

from memory_model.native.graph import WALKED_BYTES, Graph, GraphLibrary, Places, Wanted
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

        vectors: float32 [n, dimension]; those that the graph does not have are compared one by one. candidates: how
        wide it searches; proposed: how many rows are scored with their float32 vectors. Both arrays C-contiguous.
        """
        count, bits = len(queries), living.bits
        place = _place_for(self.covered, self._graph.dimension, max(candidates, proposed), count * k, count)
        wanted = place.wanted
        wanted.vectors = vectors.ctypes.data
        wanted.covered = min(self.covered, len(vectors))
        wanted.all_rows = len(vectors)
        wanted.living = None if bits is None else bits.ctypes.data
        wanted.candidates = max(candidates, proposed)
        wanted.proposed = proposed
        wanted.k = k
        wanted.count = count
        wanted.queries = queries.ctypes.data
        self._library.search(self._graph, wanted, place.places)
        counts, rows, scores = (
            place.counts[: 2 * count].tolist(),
            place.rows[: count * k].tolist(),
            place.scores[: count * k].tolist(),
        )
        return [
            (list(zip(rows[at : at + found], scores[at : at + found], strict=True)), near)
            for at, found, near in zip(range(0, count * k, k), counts[::2], counts[1::2], strict=True)
        ]


class _Place:
    """One thread's arrays, and the structs that name them."""

    def __init__(self, rows: int, dimension: int, most: int, results: int, queries: int) -> None:
        self.sizes = (rows, dimension, most, results, queries)
        self._marks = np.zeros(rows, np.uint8)
        self._query = np.zeros(dimension, np.int16)
        self._walk = np.zeros(most * WALKED_BYTES, np.uint8)
        self._near = np.zeros(most, np.int64), np.zeros(most, np.float32)
        self.rows, self.scores = np.zeros(results, np.int64), np.zeros(results, np.float32)
        self.counts = np.zeros(2 * queries, np.int64)
        arrays = (self._marks, self._query, self._walk, *self._near)
        self.places = Places(rows, 0, most, *(array.ctypes.data for array in arrays))
        self.wanted = Wanted(
            rows=self.rows.ctypes.data, scores=self.scores.ctypes.data, counts=self.counts.ctypes.data
        )


def _place_for(rows: int, dimension: int, most: int, results: int, queries: int) -> _Place:
    """This thread's, made anew where something does not fit."""
    place: _Place | None = getattr(_threads, "place", None)
    if place is None:
        place = _threads.place = _Place(rows + rows // 4 + _ROWS_MORE, dimension, most, results, queries)
    elif any(map(gt, (rows, dimension, most, results, queries), place.sizes)):
        room = rows + rows // 4 + _ROWS_MORE if rows > place.sizes[0] else 0
        larger = map(max, (room, dimension, most, results, queries), place.sizes)
        place = _threads.place = _Place(*larger)
    return place
