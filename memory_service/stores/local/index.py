"""The vectors of one knowledge base in memory: a FAISS graph of 32 links over vectors of 16-bit floats.

A search walks the graph, or compares every vector that may be found where those are few: up to some thousand, or as
few among all as a filter leaves. Both are calls of FAISS that take a bitmap of the rows that may be found.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
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
_LET_READ_S = 0.0001  # those that wait begin before the next are added
_FOOTER = struct.Struct("<QI")


@dataclass(frozen=True)
class Rows:
    """A set of rows. bits: uint8 [n / 8]; count: how many there are."""

    bits: np.ndarray
    count: int

    @classmethod
    def of(cls, member: np.ndarray) -> Rows:
        """member: bool [n], by row."""
        return cls(np.packbits(member, bitorder="little"), int(np.count_nonzero(member)))


class VectorIndex:
    """Vectors by the rows of their references, never removed. Searching is thread-safe, adding has one caller."""

    def __init__(self, dimension: int, saved: Any = None) -> None:
        """saved: one that was read from a file."""
        if saved is None:
            graph = faiss.IndexHNSWSQ(dimension, faiss.ScalarQuantizer.QT_fp16, LINKS, faiss.METRIC_INNER_PRODUCT)
            graph.hnsw.efConstruction = _BUILD_EFFORT
            graph.train(np.zeros((1, dimension), np.float32))
            saved = faiss.IndexIDMap(graph)
        self._index = saved
        self._storage = faiss.downcast_index(faiss.downcast_index(saved.index).storage)
        self._lock = _ReadersOrWriter()

    def rows(self) -> np.ndarray:
        """Of all its vectors, int64 [n], ascending."""
        return np.asarray(faiss.vector_to_array(self._index.id_map))

    @property
    def count(self) -> int:
        """Vectors it has."""
        return int(self._index.ntotal)

    @property
    def next_row(self) -> int:
        """The first row behind those it has."""
        return int(self._index.id_map.at(self.count - 1)) + 1 if self.count else 0

    def add(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Appends rows, int64 [n], with vectors, float32 [n, dimension]; searches go on in between."""
        vectors = np.ascontiguousarray(vectors, np.float32)
        for start in range(0, len(vectors), _PIECE_ROWS):
            piece = slice(start, start + _PIECE_ROWS)
            with self._lock.writing():
                self._index.add_with_ids(vectors[piece], rows[piece])

    def search(self, queries: np.ndarray, wanted: int, allowed: Rows) -> list[list[tuple[int, float]]]:
        """At most `wanted` (row, inner product) for each of `queries`, float32 [q, dimension], best first."""
        wanted = min(wanted, allowed.count)
        if not wanted:
            return [[] for _ in queries]
        queries = np.ascontiguousarray(queries, np.float32)
        with self._lock.reading():
            selector = faiss.IDSelectorBitmap(allowed.bits) if allowed.count < self.count else None
            faiss.omp_set_num_threads(1)  # of this thread: many searches at a time have all cores already
            effort = max(_EFFORT, wanted * 3 // 2) * self.count // allowed.count
            if allowed.count > _NODES_A_STEP * effort:
                parameters = faiss.SearchParametersHNSW(efSearch=effort, sel=selector)
                found = _pairs(*self._index.search(queries, wanted, params=parameters))
                if all(len(one) == wanted for one in found):
                    return found
            row_of = self._index.id_map
            of_places = None if selector is None else faiss.IDSelectorTranslated(row_of, selector)
            scores, places = self._storage.search(queries, wanted, params=faiss.SearchParameters(sel=of_places))
            rows = [[row_of.at(place) if place >= 0 else -1 for place in of_query] for of_query in places.tolist()]
            return _pairs(scores, np.array(rows))

    # The file: FAISS's own, and behind it the revision and a CRC-32C

    def save(self, path: Path, revision: int) -> None:
        """Replaces the file whole. revision: of the knowledge base. The caller adds nothing meanwhile."""
        temporary = path.with_name(f".{path.name}.new")
        try:
            faiss.write_index(self._index, str(temporary))
            crc = _crc_of(temporary, revision)
            with temporary.open("ab") as file:
                file.write(_FOOTER.pack(revision, crc))
            temporary.replace(path)
        except (OSError, RuntimeError) as error:  # FAISS says by the latter that the disk is full
            temporary.unlink(missing_ok=True)
            raise StoreUnavailable(f"the index {path} cannot be saved: {error}") from error

    @classmethod
    def load(cls, path: Path, dimension: int) -> tuple[VectorIndex, int] | None:
        """What `save` wrote, and the revision; None where there is no such file, or one that is not whole."""
        with contextlib.suppress(OSError, RuntimeError, struct.error):
            with path.open("rb") as file:
                file.seek(-_FOOTER.size, os.SEEK_END)
                revision, crc = _FOOTER.unpack(file.read())
            if crc == _crc_of(path, revision, _FOOTER.size):
                saved = faiss.read_index(str(path))
                return (cls(dimension, saved), revision) if saved.d == dimension else None
        return None


def _pairs(scores: np.ndarray, rows: np.ndarray) -> list[list[tuple[int, float]]]:
    return [
        [(row, score) for row, score in zip(of_query, theirs, strict=True) if row >= 0]
        for of_query, theirs in zip(rows.tolist(), scores.tolist(), strict=True)
    ]


def _crc_of(path: Path, revision: int, less: int = 0) -> int:
    """CRC-32C of the revision and the file, `less` so many bytes at its end."""
    crc, left = google_crc32c.value(revision.to_bytes(8, "little")), path.stat().st_size - less
    with path.open("rb") as file:
        while left and (piece := file.read(min(left, 1 << 22))):
            crc = google_crc32c.extend(crc, piece)
            left -= len(piece)
    return int(crc)


class _ReadersOrWriter:
    """FAISS allows no search of an index while vectors are added. A writer that waits lets no further reader begin."""

    def __init__(self) -> None:
        self._turn, self._counting, self._index = threading.Lock(), threading.Lock(), threading.Lock()
        self._readers = 0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        with self._turn, self._counting:
            if not self._readers:
                self._index.acquire()
            self._readers += 1
        try:
            yield
        finally:
            with self._counting:
                self._readers -= 1
                if not self._readers:
                    self._index.release()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        with self._turn, self._index:
            yield
        time.sleep(_LET_READ_S)
