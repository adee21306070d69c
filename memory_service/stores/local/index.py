"""The vectors of one knowledge base in memory: a FAISS graph of 32 links over vectors of 16-bit floats.

Equal and nearly equal vectors are one node of the graph (`VectorGroups`): some hundred copies of a text would link to
each other alone, and hide what lies behind them. A search walks the graph and compares the vectors of the groups it
meets, or compares every vector that may be found where those are few: up to some thousand, or as few among all as a
filter leaves.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss as _faiss
import google_crc32c
import numpy as np

from memory_service.errors import StoreUnavailable
from memory_service.stores.local.groups import NEAR, Rows, VectorGroups

faiss: Any = _faiss  # its stubs know less than it can

LINKS, _BUILD_EFFORT, _EFFORT = 32, 64, 64
_NODES_A_STEP = 8  # so many vectors are compared one by one as fast as a walk goes one candidate further
_PIECE_ROWS = 8  # searches wait while so many are added
_JOIN_EFFORT = 24  # of the search for a node that a vector may join
_LET_READ_S = 0.0001  # those that wait begin before the next are added
_FOOTER = struct.Struct("<QQI")


class VectorIndex:
    """Vectors by the rows of their references, never removed. Searching is thread-safe, adding has one caller."""

    def __init__(self, dimension: int, graph: Any = None, groups: VectorGroups | None = None) -> None:
        """graph, groups: of an index that was read from a file."""
        if graph is None:
            graph = faiss.IndexHNSWSQ(dimension, faiss.ScalarQuantizer.QT_fp16, LINKS, faiss.METRIC_INNER_PRODUCT)
            graph.hnsw.efConstruction = _BUILD_EFFORT
            graph.train(np.zeros((1, dimension), np.float32))
        self._graph = graph
        self._storage = faiss.downcast_index(graph.storage)
        self._groups = groups or VectorGroups(dimension)
        self._lock = _ReadersOrWriter()
        self._next_row = int(self._groups.rows.all().max()) + 1 if self.count else 0

    def rows(self) -> np.ndarray:
        """Of all its vectors, int64 [n], in the order in which they were added."""
        return self._groups.rows.all()

    @property
    def count(self) -> int:
        """Vectors it has."""
        return len(self._groups.rows)

    @property
    def node_count(self) -> int:
        """Nodes of the graph: groups of vectors that are equal, or nearly."""
        return int(self._graph.ntotal)

    @property
    def next_row(self) -> int:
        """The first row behind those it has."""
        return self._next_row

    def add(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Appends rows, int64 [n], with vectors, float32 [n, dimension]; searches go on in between."""
        vectors = np.ascontiguousarray(vectors, np.float32)
        for start in range(0, len(vectors), _PIECE_ROWS):
            piece = slice(start, start + _PIECE_ROWS)
            with self._lock.writing():
                self._add(rows[piece], vectors[piece])
                self._next_row = max(self._next_row, int(rows[piece].max()) + 1)

    def _add(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Rows whose vector is near a node's join it; the others become nodes."""
        leaders = self._graph.ntotal
        scores, nodes = np.full(len(rows), -1.0, np.float32), np.full(len(rows), -1)
        if leaders:
            parameters = faiss.SearchParametersHNSW(efSearch=_JOIN_EFFORT)
            found, indices = self._graph.search(vectors, 1, params=parameters)
            scores, nodes = found[:, 0], indices[:, 0]
        new: list[int] = []
        for number, vector in enumerate(vectors):
            node, score = int(nodes[number]), float(scores[number])
            if new:
                among_new = vectors[new] @ vector
                best = int(among_new.argmax())
                if among_new[best] > score:
                    node, score = leaders + best, float(among_new[best])
            if score >= NEAR and node >= 0:
                at = vectors[new[node - leaders]] if node >= leaders else self._storage.reconstruct(node)
                if self._groups.join(int(rows[number]), vector, node, at):
                    continue
            self._groups.begin(int(rows[number]), leaders + len(new))
            new.append(number)
        if new:
            self._graph.add(vectors[new])

    def search(self, queries: np.ndarray, wanted: int, allowed: Rows) -> list[list[tuple[int, float]]]:
        """At most `wanted` (row, inner product) for each of `queries`, float32 [q, dimension], best first."""
        wanted = min(wanted, allowed.count)
        if not wanted:
            return [[] for _ in queries]
        queries = np.ascontiguousarray(queries, np.float32)
        with self._lock.reading():
            everything = allowed.count == self.count
            nodes = None if everything else self._groups.nodes_of(allowed)
            node_count = self.node_count if nodes is None else int(np.count_nonzero(nodes))
            if not node_count:
                return [[] for _ in queries]
            selector = None if nodes is None else faiss.IDSelectorBitmap(np.packbits(nodes, bitorder="little"))
            faiss.omp_set_num_threads(1)  # of this thread: many searches at a time have all cores already
            effort = max(_EFFORT, wanted * 3 // 2) * self.node_count // node_count
            if node_count > _NODES_A_STEP * effort:
                parameters = faiss.SearchParametersHNSW(efSearch=effort, sel=selector)
                # More nodes than are wanted: a vector may be nearer than the node of its group.
                near = max(_EFFORT, wanted) if self._groups.near else wanted
                scores, found = self._graph.search(queries, near, params=parameters)
                best = [
                    self._groups.best(*one, wanted, None if everything else allowed)
                    for one in zip(queries, found, scores, strict=True)
                ]
                if all(len(one) == wanted for one in best):
                    return best
            others = self._groups.others_of(nodes) if self._groups.near else None
            near = min(node_count, wanted)
            scores, found = self._storage.search(queries, near, params=faiss.SearchParameters(sel=selector))
            return [
                self._groups.best(*one, wanted, None if everything else allowed, others)
                for one in zip(queries, found, scores, strict=True)
            ]

    # The file: FAISS's own, behind it the groups, and then their sizes, the revision and a CRC-32C

    def save(self, path: Path, revision: int) -> None:
        """Replaces the file whole. revision: of the knowledge base. The caller adds nothing meanwhile."""
        temporary = path.with_name(f".{path.name}.new")
        try:
            faiss.write_index(self._graph, str(temporary))
            with temporary.open("ab") as file:
                graph_bytes = file.tell()
                self._groups.write(file)
            crc = _crc_of(temporary, revision)
            with temporary.open("ab") as file:
                file.write(_FOOTER.pack(graph_bytes, revision, crc))
            temporary.replace(path)
        except (OSError, RuntimeError) as error:  # FAISS says by the latter that the disk is full
            temporary.unlink(missing_ok=True)
            raise StoreUnavailable(f"the index {path} cannot be saved: {error}") from error

    @classmethod
    def load(cls, path: Path, dimension: int) -> tuple[VectorIndex, int] | None:
        """What `save` wrote, and the revision; None where there is no such file, or one that is not whole."""
        with contextlib.suppress(OSError, RuntimeError, ValueError, struct.error):
            with path.open("rb") as file:
                file.seek(-_FOOTER.size, os.SEEK_END)
                graph_bytes, revision, crc = _FOOTER.unpack(file.read())
                if crc != _crc_of(path, revision, _FOOTER.size):
                    return None
                file.seek(graph_bytes)
                groups = VectorGroups.read(file, dimension)
            graph = faiss.read_index(str(path))
            return (cls(dimension, graph, groups), revision) if graph.d == dimension else None
        return None


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
