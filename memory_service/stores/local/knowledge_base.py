"""One knowledge base in a folder: SQLite and the index of its vectors, searched and written together.

A batch adds its vectors to the index, commits, and then shows them to searches by a new `View`. A search takes the
view that belongs to the commit that its snapshot sees, so it finds each document once and whole.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cachetools import LRUCache

from memory_model.words import ranked
from memory_service.errors import KnowledgeBaseDamaged, KnowledgeBaseNotFound, StoreUnavailable
from memory_service.ops.logs import logger
from memory_service.stores import Found, NewDocument, Query, Retrieved, Written
from memory_service.stores.filters import Filter
from memory_service.stores.local.database import Database, disk_errors
from memory_service.stores.local.index import Rows, VectorIndex
from memory_service.stores.local.snapshot import Snapshot
from memory_service.stores.local.tables import Document

_DATA, _INDEX = "documents.sqlite3", "index.faiss"
_KEPT_FILTERS = 32
_PUBLISHED_SOON_S = 0.0005


@dataclass(frozen=True)
class LocalRules:
    """When a local store does what by itself.

    start_check_bytes: up to this size of a file everything in it is compared before a knowledge base is served, above
    it afterwards in the background (each payload is compared when it is read anyway). save_share: of new or dead
    vectors, from which on the index is saved. dead_rows, dead_share: so many dead vectors, and such a share of all,
    make the index be built again.
    """

    start_check_bytes: int = 1 << 30
    save_share: float = 0.05
    dead_rows: int = 1024
    dead_share: float = 0.3


@dataclass(frozen=True)
class View:
    """What searches find after one batch. living: bool [n], the rows of references that are there; rows: as a set."""

    revision: int
    index: VectorIndex
    living: np.ndarray
    rows: Rows


class LocalKnowledgeBase:
    """Reading is thread-safe; writes follow one another. `maintain` has one caller, a thread of the store."""

    def __init__(self, folder: Path, dimension: int, rules: LocalRules, *, create: bool = False) -> None:
        """Raises KnowledgeBaseDamaged for whatever is not as it was written. create: a new one in a new folder."""
        self.folder = folder
        self._dimension = dimension
        self._rules = rules
        self._lock = threading.RLock()  # of writes
        self._stop = threading.Event()
        self._filters: LRUCache[tuple[Filter, int], Rows] = LRUCache(_KEPT_FILTERS)
        self._filters_lock = threading.Lock()
        self._saved_rows = 0
        with disk_errors("opening the knowledge base"):
            if create:
                folder.mkdir()
            elif not folder.is_dir():
                raise KnowledgeBaseDamaged(f"its folder {folder.name} is missing")
            self.database = Database(folder / _DATA, create=create)
            try:
                self._unchecked = not create
                with self.database.snapshot() as snapshot:
                    self.database.require_newest(snapshot.revision().number)
                    if self._unchecked and (folder / _DATA).stat().st_size <= rules.start_check_bytes:
                        if problems := self._problems(snapshot, deep=True):
                            raise KnowledgeBaseDamaged("; ".join(problems))
                        self._unchecked = False
                    self._view = self._loaded(snapshot)
            except BaseException:
                self.database.close()
                raise

    def _loaded(self, snapshot: Snapshot) -> View:
        """The saved index with what came since; one that is missing, harmed or too old is built again."""
        index, revision = VectorIndex.load(self.folder / _INDEX, self._dimension) or (None, 0)
        if index is None and (self.folder / _INDEX).is_file():
            logger().warning("index_built_again", folder=str(self.folder), problem="it is not whole")
        if index is not None and revision <= snapshot.revision().number:
            self._saved_rows = index.count
            with contextlib.suppress(KnowledgeBaseDamaged):
                view = self._caught_up(index, snapshot)
                if not self._many_dead(view):
                    return view
        self._saved_rows = 0
        return self._caught_up(VectorIndex(self._dimension), snapshot)

    def _caught_up(self, index: VectorIndex, snapshot: Snapshot) -> View:
        """The view of the snapshot, by an index that gets the vectors it lacks."""
        revision = snapshot.revision()
        for rows, vectors in snapshot.vectors(index.next_row, self._dimension):
            if self._stop.is_set():
                break
            index.add(rows, vectors)
        living = snapshot.rows_of(None, index.next_row)
        if np.count_nonzero(living[index.rows()]) != revision.memories and not self._stop.is_set():
            raise KnowledgeBaseDamaged("vectors of memories are lost")
        return View(revision.number, index, living, Rows.of(living))

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[Snapshot, View]]:
        """A state of the data, and the view of the commit that it sees."""
        with disk_errors("reading"):
            while True:
                self._require_open()
                with self.database.snapshot() as snapshot:
                    revision, view = snapshot.revision().number, self._view
                    if view.revision == revision:
                        yield snapshot, view
                        return
                time.sleep(_PUBLISHED_SOON_S)  # a batch is committed, its view comes at once

    def _require_open(self) -> None:
        if self._stop.is_set():
            raise KnowledgeBaseNotFound("the knowledge base was deleted meanwhile")

    # Reading

    def retrieve(self, query: Query) -> Retrieved:
        """See Store."""
        began = time.perf_counter_ns()
        with self.reading() as (snapshot, view):
            wanted = max(query.k, query.candidates) if any(query.words) else query.k
            allowed = self._allowed(snapshot, view, query.filter)
            near = view.index.search(unit(query.vectors), wanted, allowed)
            if (least := query.minimum_score) is not None:
                near = [[one for one in of_query if one[1] >= least] for of_query in near]
            searched = time.perf_counter_ns()
            chosen = _ranked(snapshot, query, near)
            ended = time.perf_counter_ns()
            rows = list({row for of_query in chosen for row, _, _ in of_query})
            known = snapshot.references(rows, query.held_ids)
        hits = [
            [
                Found(
                    one.memory_id, score, one.key, one.title, one.chunk, one.crc32c,
                    one.text if query.return_text else None, rank_score,
                    json.loads(one.metadata) if query.return_metadata else None,
                )
                for row, score, rank_score in of_query
                for one in [known[row]]
            ]
            for of_query in chosen
        ]  # fmt: skip
        payloads = {one.memory_id: one.payload for one in known.values() if one.payload is not None}
        rank_us = (ended - searched) // 1000 if any(query.words) else 0
        search_us, fetch_us = (ended - began) // 1000, (time.perf_counter_ns() - ended) // 1000
        return Retrieved(hits, payloads, search_us, fetch_us, rank_us)

    def _allowed(self, snapshot: Snapshot, view: View, condition: Filter | None) -> Rows:
        """The rows whose documents pass; kept for the next such query."""
        if condition is None:
            return view.rows
        with self._filters_lock:
            kept = self._filters.get((condition, view.revision))
        if kept is None:
            kept = Rows.of(snapshot.rows_of(condition, len(view.living)))
            with self._filters_lock:
                self._filters[condition, view.revision] = kept
        return kept

    def problems(self, *, deep: bool) -> list[str]:
        """What is wrong, a sentence each."""
        with self.reading() as (snapshot, _):
            return self._problems(snapshot, deep=deep)

    def _problems(self, snapshot: Snapshot, *, deep: bool) -> list[str]:
        """Also of a file in which SQLite itself finds no way; nothing once the knowledge base is closed."""
        with snapshot.interrupted_by(self._stop):
            try:
                with disk_errors("checking"):
                    return [*snapshot.differences(), *(snapshot.changes() if deep else ())]
            except (
                KnowledgeBaseDamaged,
                ValueError,
                TypeError,
            ) as error:  # values that are no text, no number
                return [str(error) or type(error).__name__]
            except StoreUnavailable:
                if self._stop.is_set():
                    return []
                raise

    # Writing

    def write(self, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store."""
        with self._lock, disk_errors("writing"):
            with self.database.snapshot() as snapshot:
                stored = snapshot.documents([document.key for document in documents])
            fresh = [document for document in documents if _is_news(document, stored.get(document.key))]
            if fresh:
                self._batch(fresh, [stored[document.key] for document in fresh if document.key in stored])
        written = {document.key for document in fresh}
        return [
            Written(d.key, len(d.references), d.key in stored and d.key in written, d.key not in written)
            for d in documents
        ]

    def delete(self, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        with self._lock, disk_errors("deleting"):
            with self.database.snapshot() as snapshot:
                stored = list(snapshot.documents(keys).values())
            if stored:
                self._batch([], stored)
            return len(stored), sum(document.row_count for document in stored)

    def _batch(self, fresh: Sequence[NewDocument], removed: Sequence[Document]) -> None:
        """One batch, whole or not at all. Its vectors are in the index before anybody may find them.

        What a batch that fails has added to the index stays there and is found by nobody: its rows are not used again.
        """
        self._require_open()
        index, before = self._view.index, self._view.living
        with self.database.batch(index.next_row) as batch:
            for document in removed:
                batch.remove(document)
            vectors = [unit(np.stack([r.vector for r in document.references])) for document in fresh]
            for new, of_document in zip(fresh, vectors, strict=True):
                batch.add(new, of_document)
            if vectors:
                index.add(np.arange(batch.first_row, batch.next_row), np.concatenate(vectors))
            living = np.zeros(batch.next_row, bool)
            living[: len(before)] = before
            for document in removed:
                living[slice(*document.rows)] = False
            living[batch.first_row :] = True
            view = View(batch.revision.number, index, living, Rows.of(living))
        self._view = view
        self.database.note_commit(view.revision)

    # In the background

    def maintain(self) -> list[str]:
        """Compares what was left at the start, saves the index or builds it again; returns the problems found."""
        if self._unchecked:
            problems = self.problems(deep=True)
            self._unchecked = False
            if problems:
                return problems
        if self._many_dead(self._view):
            self._build_again()
        if abs(self._view.index.count - self._saved_rows) > self._rules.save_share * self._saved_rows:
            self.save()
        return []

    def _many_dead(self, view: View) -> bool:
        rows, rules = view.index.count, self._rules
        return rows - view.rows.count >= max(rules.dead_rows, rules.dead_share * rows)

    def _build_again(self) -> None:
        """An index of the living alone; searches and writes go on while most of it is built."""
        index = VectorIndex(self._dimension)
        with self.reading() as (snapshot, _):
            self._caught_up(index, snapshot)
        with self._lock, self.reading() as (snapshot, _):
            self._view = self._caught_up(index, snapshot)
            self._saved_rows = 0

    def save(self) -> None:
        """Writes the index beside the data."""
        with self._lock:
            view = self._view
            if not self._stop.is_set():
                view.index.save(self.folder / _INDEX, view.revision)
                self._saved_rows = view.index.count

    def close(self) -> None:
        """Closes the files; keeps the index beside them."""
        with self._lock:
            if self._view.index.count != self._saved_rows:
                try:
                    self.save()
                except Exception as error:  # it is a copy: it will be made again
                    logger().warning("index_not_saved", problem=str(error))
            self._stop.set()
            self.database.close()

    def drop(self) -> None:
        """Removes the folder."""
        self._stop.set()
        with self._lock:
            self.database.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def _ranked(
    snapshot: Snapshot, query: Query, near: list[list[tuple[int, float]]]
) -> list[list[tuple[int, float, float]]]:
    """(row, score, rank score) of the first k of each query, by vector and words where it has words."""
    by_words = [bool(query.words and query.words[n] and near[n]) for n in range(len(near))]
    rows = {row for n, of_query in enumerate(near) if by_words[n] for row, _ in of_query}
    words = snapshot.words(list(rows)) if rows else {}
    chosen = []
    for number, of_query in enumerate(near):
        scores = [score for _, score in of_query]
        best = list(enumerate(scores))
        if by_words[number]:
            found = [words[row] for row, _ in of_query]
            best = ranked(
                query.words[number], scores, [one.text for one in found], [one.title for one in found],
                query.maximum_drop,
            )  # fmt: skip
        chosen.append([(of_query[one][0], scores[one], rank) for one, rank in best[: query.k]])
    return chosen


def unit(vectors: np.ndarray) -> np.ndarray:
    """The vectors as float32 [n, dimension] at length one, so that inner products are cosines."""
    vectors = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(np.abs(lengths - 1) < 1e-6, vectors, vectors / lengths)


def _is_news(document: NewDocument, stored: Document | None) -> bool:
    """Whether a document is to be written where this one is stored."""
    there = None if stored is None else stored.content_hash
    return there != document.content_hash and document.replaces in (None, there)
