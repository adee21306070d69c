"""Nearest vectors: by comparing with all of them while there are few, by FAISS HNSW and then IVF when there are many.

    rows      below `hnsw_from`        none                 every vector is compared: exact
              below `ivf_from`         HNSW32, 8 bits       a graph of 32 links, built with 128 candidates
              from there on            IVF, 8 bits          4 sqrt(n) lists of 8-bit vectors, 64 of them searched

The index covers the rows up to some row; those behind it, the tail, are compared one by one, so that a reference can
be found as soon as it is stored. Growth happens in the background. What the index proposes is scored anew with the
float32 vectors, so scores and order do not depend on which rows it covers. The index is no data: its file is a copy
that saves building it again, and is left alone when it is missing or changed.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss as _faiss
import numpy as np

from memory_service.errors import StoreUnavailable
from memory_service.ops.logs import logger
from memory_service.stores.local.disk import crc_of, replace_file
from memory_service.stores.local.guard import ReadersOrWriter
from memory_service.stores.local.large_pages import on_large_pages
from memory_service.stores.local.living import Living

# Its stubs know less than it can.
faiss: Any = _faiss

_FILE, _NOTE = "index.faiss", "index.json"
_LINKS, _BUILD_CANDIDATES = 32, 128
_PIECE_ROWS = 16384
_PROPOSED = 10
_TRAINING_VECTORS_PER_LIST = 64
_RANGE_TRAINING_VECTORS = 65536
Nearest = list[tuple[int, float]]
"""Rows with their scores, best first. Lists, because numpy costs more than Python for ten numbers."""


@dataclass(frozen=True)
class IndexRule:
    """From how many rows on which index is used; the tail of rows it does not cover; how hard it searches."""

    hnsw_from: int = 1024
    ivf_from: int = 2_000_000
    tail_rows: int = 256
    rows_at_once: int = 4
    search_candidates: int = 32
    lists_searched: int = 64

    def kind(self, rows: int) -> str:
        """The index for so many rows: "", "hnsw" or "ivf"."""
        return "" if rows < self.hnsw_from else "hnsw" if rows < self.ivf_from else "ivf"


class VectorIndex:
    """An index over a growing array of vectors. Searching is thread-safe; `grow` and `save` have one caller."""

    def __init__(self, dimension: int, rule: IndexRule) -> None:
        self.dimension = dimension
        self.rule = rule
        self.kind = ""
        self._index: Any = None
        self._mapped_from: Path | None = None
        self._guard = ReadersOrWriter()
        self._without_selector: dict[int, Any] = {}  # by how hard they search; made once, read by many

    @property
    def covered(self) -> int:
        """Rows that the index knows."""
        return 0 if self._index is None else int(self._index.ntotal)

    # Searching

    def is_at_hand(self, rows: int) -> bool:
        """Whether a search of so many rows is short and waits for nothing: no lists, no long tail, no growing."""
        few = rows - self.covered <= self.rule.hnsw_from
        return few and self.kind != "ivf" and self._mapped_from is None and self._guard.is_free

    def search(self, vectors: np.ndarray, queries: np.ndarray, k: int, living: Living) -> list[Nearest]:
        """The m <= k living rows nearest to each of `queries` (float32 [q, dimension]), best first.

        vectors: float32 [n, dimension]. Equal scores keep the order of their rows. Queries that come together share
        what a search costs beside its steps, and Python's lock is let go of once for all of them.
        """
        rows = len(vectors)
        with self._guard.reading():
            _search_alone()
            covered = min(self.covered, rows)
            proposed = self._propose(queries, k, living, covered) if covered else [[] for _ in queries]
        if covered < rows:
            flags = living.flags(rows)
            alive = None if flags is None else flags[covered:]
            for number, vector in enumerate(queries):
                proposed[number] += (covered + nearest_among(vectors[covered:], vector, k, alive)).tolist()
        return best_of(vectors, queries, proposed, k)

    def _propose(self, queries: np.ndarray, k: int, living: Living, rows: int) -> list[list[int]]:
        """For each query living ones of the first `rows` rows that the index says are near: k if there are as many.

        More are proposed than wanted, for the index knows vectors of 8 bits and what it proposes is scored anew.
        """
        bits = living.bits
        selector = None if bits is None else faiss.IDSelectorBitmap(bits)  # keeps a reference to the bits
        flags = living.flags(rows)
        there = rows - living.dead  # some of the dead may lie behind these rows
        if there < k + _PROPOSED and flags is not None:
            there = int(np.count_nonzero(flags))
        wanted, asked = min(k, there), min(max(_PROPOSED, 2 * k), there)
        proposed: list[list[int]] = [[] for _ in queries]
        missing = list(range(len(queries))) if wanted else []
        for effort in (1, 4, 16):
            if not missing:
                return proposed
            parameters = self._parameters(k, effort, selector)
            those = queries if len(missing) == len(queries) else queries[missing]
            found = self._found(those, asked, parameters)
            for number, near in zip(missing, found, strict=True):
                # Rows of a batch that came after this search began are not its own.
                proposed[number] = [row for row in near if 0 <= row < rows]
            missing = [number for number in missing if len(proposed[number]) < wanted]
            # The dead lie nearer than the living: search wider, at last everywhere.
        for number in missing:
            proposed[number] = (np.arange(rows) if flags is None else np.flatnonzero(flags)).tolist()
        return proposed

    def _found(self, queries: np.ndarray, asked: int, parameters: Any) -> list[list[int]]:
        """Rows of each query as FAISS finds them; its own `search` makes two arrays and looks at five each time."""
        places = getattr(_threads, "places", None)
        if places is None or places[0] != (len(queries), asked):
            scores, rows = (
                np.empty((len(queries), asked), np.float32),
                np.empty((len(queries), asked), np.int64),
            )
            places = ((len(queries), asked), scores, rows, faiss.swig_ptr(scores), faiss.swig_ptr(rows))
            _threads.places = places
        given = np.ascontiguousarray(queries, np.float32)
        self._index.search_c(len(given), faiss.swig_ptr(given), asked, places[3], places[4], parameters)
        rows_found: list[list[int]] = places[2].tolist()
        return rows_found

    def _parameters(self, k: int, effort: int, selector: Any) -> Any:
        if self.kind == "hnsw":
            candidates = effort * max(self.rule.search_candidates, 2 * k)
            if selector is not None:
                return faiss.SearchParametersHNSW(efSearch=candidates, sel=selector)
            if candidates not in self._without_selector:
                self._without_selector[candidates] = faiss.SearchParametersHNSW(efSearch=candidates)
            return self._without_selector[candidates]
        lists = min(effort * self.rule.lists_searched, self._index.nlist)
        return faiss.SearchParametersIVF(nprobe=lists, sel=selector)

    # Growing

    def needs_growth(self, rows: int, tail_rows: int | None = None) -> bool:
        """Whether `grow` has something to do: more rows than the rule's, or `tail_rows`, are not covered."""
        kind, tail = self.rule.kind(rows), self.rule.tail_rows if tail_rows is None else tail_rows
        return bool(kind) and (kind != self.kind or rows - self.covered >= tail)

    def grow(self, vectors: np.ndarray, stop: Any = None) -> None:
        """Covers all of `vectors` (float32 [n, dimension]); gives up early when `stop` (an Event) is set."""
        kind = self.rule.kind(len(vectors))
        if not kind:
            return
        if kind != self.kind:
            index = self._new(kind, vectors)
            while index.ntotal < len(vectors):
                if stop is not None and stop.is_set():
                    return
                index.add(_piece(vectors, index.ntotal, _PIECE_ROWS if kind == "ivf" else 256))
            with self._guard.writing():
                self._take(index, kind, None)
        if not self._own(len(vectors)):
            return
        while self.covered < len(vectors) and not (stop is not None and stop.is_set()):
            piece = _piece(vectors, self.covered, self.rule.rows_at_once)
            with self._guard.writing():
                self._index.add(piece)

    def _take(self, index: Any, kind: str, mapped_from: Path | None) -> None:
        """Under the writer's guard."""
        self._index, self.kind, self._mapped_from = index, kind, mapped_from

    def _new(self, kind: str, vectors: np.ndarray) -> Any:
        random = np.random.default_rng(0)
        if kind == "hnsw":
            index = faiss.IndexHNSWSQ(
                self.dimension, faiss.ScalarQuantizer.QT_8bit_uniform, _LINKS, faiss.METRIC_INNER_PRODUCT
            )
            index.hnsw.efConstruction = _BUILD_CANDIDATES
            # One range for all dimensions: a comparison reads the vector alone, and is a third faster for it. Later
            # references may lie outside what the first ones span: a quarter as much room on each side.
            faiss.downcast_index(index.storage).sq.rangestat_arg = 0.25
            index.train(_sample(random, vectors, _RANGE_TRAINING_VECTORS))
            return index
        lists = max(1, int(4 * math.sqrt(len(vectors))))
        index = faiss.index_factory(self.dimension, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
        index.train(_sample(random, vectors, lists * _TRAINING_VECTORS_PER_LIST))
        return index

    # The file

    def save(self, folder: Path) -> None:
        """Writes the index beside the data; a file that is cut off half way is not used."""
        if self._index is None:
            return
        temporary = folder / f".{_FILE}.new"
        try:
            with self._guard.reading():
                faiss.write_index(self._index, str(temporary))
                rows = self.covered
                _place(self._index, self.kind)  # it has grown since, and lies elsewhere
        except RuntimeError as error:  # so FAISS says that the disk is full
            temporary.unlink(missing_ok=True)
            raise StoreUnavailable(f"the index of {folder} cannot be saved: {error}") from error
        note = {
            "kind": self.kind,
            "rows": rows,
            "bytes": temporary.stat().st_size,
            "crc32c": crc_of(temporary),
        }
        temporary.replace(folder / _FILE)
        replace_file(folder / _NOTE, json.dumps(note).encode())

    def load(self, folder: Path, rows: int, *, mapped: bool = False) -> bool:
        """Takes what `save` wrote, if it is whole, fits the rule and covers more than this one but not above `rows`.

        mapped: the file is mapped, so that all processes that do so have it in memory once; `grow` makes a copy.
        """
        found = self._read(folder, self.covered + 1, rows, mapped=mapped)
        if found is None:
            return False
        if not mapped:
            _place(*found)
        with self._guard.writing():
            self._take(*found, folder if mapped else None)
        return True

    def _read(self, folder: Path, least: int, most: int, *, mapped: bool) -> tuple[Any, str] | None:
        """The saved index and its kind, if it covers `least` to `most` rows."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RuntimeError):
            note = json.loads((folder / _NOTE).read_bytes())
            file = folder / _FILE
            fits = least <= note["rows"] <= most and note["kind"] == self.rule.kind(note["rows"])
            if fits and file.stat().st_size == note["bytes"] and crc_of(file) == note["crc32c"]:
                index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
                if index.ntotal == note["rows"] and index.d == self.dimension:
                    return index, note["kind"]
            elif fits:
                logger().warning("index_left_alone", file=str(file), problem="it is not what was written")
        return None

    def _own(self, rows: int) -> bool:
        """Whether vectors can be added: a mapped index is read into memory first."""
        if self._mapped_from is not None:
            found = self._read(self._mapped_from, self.covered, rows, mapped=False)
            if found is None:
                return False
            with self._guard.writing():
                self._take(*found, None)
        return True


_threads = threading.local()


def _search_alone() -> None:
    """FAISS would spread one search over all cores, which many searches at a time have already."""
    if not getattr(_threads, "alone", False):
        faiss.omp_set_num_threads(1)
        _threads.alone = True


def nearest_among(vectors: np.ndarray, vector: np.ndarray, k: int, living: np.ndarray | None) -> np.ndarray:
    """Rows int64 of the k living `vectors` (None: all) with the largest inner product, in no order."""
    scores = vectors @ vector
    count = min(k, len(scores))
    if living is not None:
        scores[~living] = -np.inf
        count = min(k, int(np.count_nonzero(living)))
    return np.argpartition(-scores, count - 1)[:count] if count else np.empty(0, np.int64)


def best_of(vectors: np.ndarray, queries: np.ndarray, rows: Sequence[list[int]], k: int) -> list[Nearest]:
    """For each of `queries` the k best of its `rows`, best first; equal scores in the order of rows."""
    near = vectors.take([row for of_query in rows for row in of_query], axis=0)
    found, start = [], 0
    for vector, of_query in zip(queries, rows, strict=True):
        end = start + len(of_query)
        scores = np.negative(near[start:end] @ vector).tolist()
        found.append([(row, -score) for score, row in sorted(zip(scores, of_query, strict=True))[:k]])
        start = end
    return found


def _place(index: Any, kind: str) -> None:
    """Puts a graph's vectors and links on large pages, where the system has them."""
    if kind == "hnsw":
        codes, links = faiss.downcast_index(index.storage).codes, index.hnsw.neighbors
        on_large_pages(int(codes.data()), codes.size())
        on_large_pages(int(links.data()), 4 * links.size())


def _sample(random: np.random.Generator, vectors: np.ndarray, count: int) -> np.ndarray:
    return np.ascontiguousarray(vectors[np.sort(random.permutation(len(vectors))[:count])])


def _piece(vectors: np.ndarray, start: int, count: int) -> np.ndarray:
    return np.ascontiguousarray(vectors[start : start + count])
