"""The vectors of one knowledge base in memory: a FAISS graph of 32 links over vectors of 16-bit floats.

A search walks the graph, or compares every vector that may be found where those are few: up to some thousand, or as
few among all as a filter leaves. Both are calls of FAISS that take a bitmap of the places that may be found.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss as _faiss
import google_crc32c
import numpy as np

from memory_service.errors import StoreUnavailable

faiss: Any = _faiss  # its stubs know less than it can

LINKS, _BUILD_EFFORT, _EFFORT = 32, 64, 64
_NODES_A_STEP = 8  # so many vectors are compared one by one as fast as a walk goes one candidate further
_PIECE_ROWS = 8  # searches wait while so many are added
_FOOTER = struct.Struct("<8sQQQI")
_MAGIC = b"M3INDEX2"


@dataclass(frozen=True)
class Saved:
    """What a file of an index says of it. rows: of the table, int64 [n]; revision: of the knowledge base."""

    index: VectorIndex
    rows: np.ndarray
    revision: int


class VectorIndex:
    """Vectors by their place, 0 and on; none is ever taken out. Searching is thread-safe, adding has one caller."""

    def __init__(self, dimension: int, graph: Any = None) -> None:
        """graph: one that was read from a file."""
        if graph is None:
            graph = faiss.IndexHNSWSQ(
                dimension, faiss.ScalarQuantizer.QT_fp16, LINKS, faiss.METRIC_INNER_PRODUCT
            )
            graph.hnsw.efConstruction = _BUILD_EFFORT
            graph.train(np.zeros((1, dimension), np.float32))
        self._graph = graph
        self._storage = faiss.downcast_index(graph.storage)
        self._lock = _ReadersOrWriter()

    @property
    def count(self) -> int:
        """Vectors it has."""
        return int(self._graph.ntotal)

    def add(self, vectors: np.ndarray) -> None:
        """Appends float32 [n, dimension]; searches go on in between."""
        vectors = np.ascontiguousarray(vectors, np.float32)
        for start in range(0, len(vectors), _PIECE_ROWS):
            with self._lock.writing():
                self._graph.add(vectors[start : start + _PIECE_ROWS])

    def search(
        self, queries: np.ndarray, wanted: int, allowed: np.ndarray | None, allowed_count: int
    ) -> list[list[tuple[int, float]]]:
        """For each of `queries` (float32 [q, dimension]) at most `wanted` places with their inner products, best first.

        allowed: uint8 [n / 8], bits of the `allowed_count` places that may be found; None: the first `allowed_count`.
        """
        wanted = min(wanted, allowed_count)
        if not wanted:
            return [[] for _ in queries]
        queries = np.ascontiguousarray(queries, np.float32)
        with self._lock.reading():
            if allowed is None and self.count > allowed_count:  # a batch adds those that are behind
                allowed = np.packbits(np.ones(allowed_count, bool), bitorder="little")
            selector = None if allowed is None else faiss.IDSelectorBitmap(allowed)
            faiss.omp_set_num_threads(1)  # of this thread: many searches at a time have all cores already
            effort = max(_EFFORT, wanted * 3 // 2) * self.count // allowed_count
            if allowed_count > _NODES_A_STEP * effort:
                parameters = faiss.SearchParametersHNSW(efSearch=effort, sel=selector)
                found = _pairs(*self._graph.search(queries, wanted, params=parameters))
                if all(len(one) == wanted for one in found):
                    return found
            parameters = None if selector is None else faiss.SearchParameters(sel=selector)
            return _pairs(*self._storage.search(queries, wanted, params=parameters))

    # The file

    def save(self, path: Path, rows: np.ndarray, revision: int) -> None:
        """Replaces the file whole. The caller sees to it that nothing is added meanwhile."""
        temporary = path.with_name(f".{path.name}.new")
        try:
            faiss.write_index(self._graph, str(temporary))
            with temporary.open("ab") as file:
                file.write(np.asarray(rows, "<i8").tobytes())
            crc = _crc_of(temporary)
            with temporary.open("ab") as file:
                file.write(_FOOTER.pack(_MAGIC, len(rows), revision, temporary.stat().st_size, crc))
            temporary.replace(path)
        except (OSError, RuntimeError) as error:  # FAISS says by the latter that the disk is full
            temporary.unlink(missing_ok=True)
            raise StoreUnavailable(f"the index {path} cannot be saved: {error}") from error

    @classmethod
    def load(cls, path: Path, dimension: int) -> Saved | None:
        """What `save` wrote; None where there is no such file, or one that is not whole."""
        with contextlib.suppress(OSError, RuntimeError, struct.error):
            size = path.stat().st_size - _FOOTER.size
            with path.open("rb") as file:
                file.seek(size)
                magic, count, revision, written, crc = _FOOTER.unpack(file.read())
                if (magic, written) != (_MAGIC, size) or crc != _crc_of(path, size):
                    return None
                file.seek(size - 8 * count)
                rows = np.frombuffer(file.read(8 * count), "<i8").astype(np.int64)
            graph = faiss.read_index(str(path))
            if graph.ntotal == count and graph.d == dimension:
                return Saved(cls(dimension, graph), rows, revision)
        return None


def _pairs(scores: np.ndarray, places: np.ndarray) -> list[list[tuple[int, float]]]:
    return [
        [(place, score) for place, score in zip(of_query, theirs, strict=True) if place >= 0]
        for of_query, theirs in zip(places.tolist(), scores.tolist(), strict=True)
    ]


def _crc_of(path: Path, size: int = -1) -> int:
    """CRC-32C of the first `size` bytes, or of all."""
    crc, left = 0, path.stat().st_size if size < 0 else size
    with path.open("rb") as file:
        while left and (piece := file.read(min(left, 1 << 22))):
            crc = google_crc32c.extend(crc, piece)
            left -= len(piece)
    return crc


class _ReadersOrWriter:
    """FAISS lets nobody search an index while vectors are added. Readers go before the next writer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = self._waiting = 0
        self._writing = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._writing)
            self._waiting -= 1
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._writing = True  # no further reader begins
            self._changed.wait_for(lambda: not self._readers)
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
