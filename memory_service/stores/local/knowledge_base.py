"""One knowledge base in a folder: SQLite and the index of its vectors, searched and written together.

A batch adds its vectors to the index, commits, and then shows them to searches by a new `View`. A search takes the
view that belongs to the commit that its connection sees, so it finds each document once and whole.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np
from cachetools import LRUCache

from memory_model.words import ranked
from memory_service.errors import KnowledgeBaseDamaged, KnowledgeBaseNotFound, StoreUnavailable
from memory_service.ops.logs import logger
from memory_service.stores import Found, NewDocument, Query, Retrieved, Revision, Written
from memory_service.stores.filters import And, Filter, Not, Or
from memory_service.stores.local.index import VectorIndex
from memory_service.stores.local.sqlite import Added, Batch, Database, Stored, disk_errors

_DATA, _INDEX = "documents.sqlite3", "index.faiss"
_LOADED_ROWS = 4096
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
    """The vectors that searches find after one batch, by their places in the index.

    known: the references, rows and documents ascending; living: bool [n]; bits: of `living`, None where all live.
    """

    revision: int
    index: VectorIndex
    known: Added
    living: np.ndarray
    bits: np.ndarray | None
    count: int

    @classmethod
    def of(cls, revision: int, index: VectorIndex, known: Added, living: np.ndarray) -> View:
        """The two last fields follow from the others."""
        count = int(np.count_nonzero(living))
        return cls(revision, index, known, living, None if count == len(living) else _bits(living), count)

    @property
    def rows(self) -> np.ndarray:
        """Of the table, ascending, int64 [n]."""
        return self.known.rows

    @property
    def last_row(self) -> int:
        """The largest one, -1 where there is none."""
        return int(self.rows[-1]) if len(self.rows) else -1

    def after(self, revision: int, added: Added, removed: Sequence[Stored], *, shown: bool = True) -> View:
        """With the references of a batch, without those of removed documents. shown: whether the new ones live."""
        living = np.concatenate([self.living, np.full(len(added.rows), shown)])
        for document in removed:
            first = int(np.searchsorted(self.rows, document.first_row))
            living[first : first + document.row_count] = False
        known = Added(*(np.concatenate(parts) for parts in zip(self.known, added, strict=True)))
        return View.of(revision, self.index, known, living)


class LocalKnowledgeBase:
    """Reading is thread-safe; writes follow one another. `maintain` has one caller, a thread of the store."""

    def __init__(
        self, folder: Path, dimension: int, rules: LocalRules, *, create: bool = False, writable: bool = True
    ) -> None:
        """Raises KnowledgeBaseDamaged for whatever is not as it was written. create: a new one in a new folder."""
        self.folder = folder
        self._dimension = dimension
        self._rules = rules
        self._writable = writable
        self._lock = threading.RLock()  # of who writes; where another process does, of who takes notice of it
        self._stop = threading.Event()
        self._filters: LRUCache[tuple[Filter, int], tuple[np.ndarray, int]] = LRUCache(_KEPT_FILTERS)
        self._filters_lock = threading.Lock()
        self._saved_rows = 0
        with disk_errors("opening the knowledge base"):
            if create:
                folder.mkdir()
            elif not folder.is_dir():
                raise KnowledgeBaseDamaged(f"its folder {folder.name} is missing")
            self.database = Database(folder / _DATA, create=create, writable=writable)
            try:
                self._unchecked = writable and not create
                with self.database.snapshot() as connection:
                    self.database.require_newest(self.database.revision(connection).number)
                    if self._unchecked and (folder / _DATA).stat().st_size <= rules.start_check_bytes:
                        if problems := self._problems(connection, deep=True):
                            raise KnowledgeBaseDamaged("; ".join(problems))
                        self._unchecked = False
                    self._view = self._loaded(connection)
            except BaseException:
                self.database.close()
                raise

    def _loaded(self, connection: sqlite3.Connection) -> View:
        """The saved index with what came since; one that is missing, harmed or too old is built again."""
        revision, there = self.database.revision(connection).number, self.database.added(connection, -1)
        saved, index, known = None, VectorIndex(self._dimension), _only(there, slice(0))
        if (self.folder / _INDEX).is_file():
            saved = VectorIndex.load(self.folder / _INDEX, self._dimension)
            if saved is None:
                logger().warning("index_built_again", folder=str(self.folder), problem="it is not whole")
        living = np.empty(0, bool)
        if saved is not None and saved.revision <= revision and len(saved.rows):
            living, old = np.isin(saved.rows, there.rows), there.rows <= saved.rows[-1]
            dead = len(living) - int(np.count_nonzero(living))
            if np.count_nonzero(old) + dead == len(living) and not self._too_many(dead, len(living)):
                index, self._saved_rows = saved.index, len(living)
                known = Added(saved.rows, np.zeros(len(living), np.int64), np.zeros(len(living), np.uint64))
                known.documents[living], known.ids[living] = there.documents[old], there.ids[old]
                known = known._replace(documents=np.maximum.accumulate(known.documents))
            else:
                living = np.empty(0, bool)
        return self._with_new(connection, View.of(revision, index, known, living), there)

    def _with_new(self, connection: sqlite3.Connection, view: View, there: Added) -> View:
        """The view with those of the references that it has not yet."""
        added = _only(there, there.rows > view.last_row)
        for start in range(0, len(added.rows), _LOADED_ROWS):
            rows = added.rows[start : start + _LOADED_ROWS].tolist()
            view.index.add(self.database.vectors(connection, rows, self._dimension))
        return view.after(view.revision, added, []) if len(added.rows) else view

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[sqlite3.Connection, View]]:
        """A connection and the view of the commit that it sees."""
        with disk_errors("reading"):
            while True:
                if self._stop.is_set():
                    raise KnowledgeBaseNotFound("the knowledge base was deleted meanwhile")
                with self.database.snapshot() as connection:
                    revision, view = self.database.revision(connection), self._view
                    if view.revision != revision.number and not self._writable:
                        view = self._follow(connection, revision)
                    if view.revision == revision.number:
                        yield connection, view
                        return
                time.sleep(_PUBLISHED_SOON_S)  # a batch is committed, its view comes at once

    def _follow(self, connection: sqlite3.Connection, revision: Revision) -> View:
        """Where another process writes: the view with what it has committed."""
        with self._lock:
            if self._view.revision < revision.number:
                added = self.database.added(connection, self._view.last_row)
                view = self._with_new(connection, self._view, added)
                if view.count != revision.memories:  # some are gone
                    living = np.isin(view.rows, self.database.added(connection, -1).rows)
                    view = View.of(0, view.index, view.known, living)
                self._view = replace(view, revision=revision.number)
            return self._view

    # Reading

    def retrieve(self, query: Query) -> Retrieved:
        """See Store."""
        began = time.perf_counter_ns()
        with self.reading() as (connection, view):
            bits, count = self._allowed(connection, view, query.filter)
            wanted = max(query.k, query.candidates) if any(query.words) else query.k
            near = view.index.search(unit(query.vectors), wanted, bits, count)
            if (least := query.minimum_score) is not None:
                near = [[one for one in of_query if one[1] >= least] for of_query in near]
            searched = time.perf_counter_ns()
            chosen = self._ranked(connection, view, query, near)
            ended = time.perf_counter_ns()
            places = list({place for of_query in chosen for place, _, _ in of_query})
            rows, ids = view.rows[places].tolist(), view.known.ids[places].tolist()
            held = [row for row, memory_id in zip(rows, ids, strict=True) if memory_id in query.held_ids]
            read = self.database.references(connection, rows, held)
            known = dict(zip(places, (read[row] for row in rows), strict=True))
        hits = [
            [
                Found(
                    one.memory_id, score, one.key, one.title, one.chunk, one.crc32c,
                    one.text if query.return_text else None, rank_score,
                    json.loads(one.metadata) if query.return_metadata else None,
                )
                for place, score, rank_score in of_query
                for one in [known[place]]
            ]
            for of_query in chosen
        ]  # fmt: skip
        payloads = {one.memory_id: one.payload for one in known.values() if one.payload is not None}
        search_us, rank_us = (searched - began) // 1000, (ended - searched) // 1000 if any(query.words) else 0
        return Retrieved(
            hits, payloads, search_us + rank_us, (time.perf_counter_ns() - ended) // 1000, rank_us
        )

    def _ranked(
        self, connection: sqlite3.Connection, view: View, query: Query, near: list[list[tuple[int, float]]]
    ) -> list[list[tuple[int, float, float]]]:
        """(place, score, rank score) of the first k of each query, by vector and words where it has words."""
        rows = [view.rows[[place for place, _ in of_query]].tolist() if of_query else [] for of_query in near]
        by_words = [number for number in range(len(near)) if query.words and query.words[number]]
        words = self.database.words(connection, list({row for number in by_words for row in rows[number]}))
        chosen = []
        for number, of_query in enumerate(near):
            scores = [score for _, score in of_query]
            if number in by_words and of_query:
                found = [words[row] for row in rows[number]]
                best = ranked(
                    query.words[number], scores, [one.text for one in found], [one.title for one in found],
                    query.maximum_drop,
                )  # fmt: skip
            else:
                best = list(enumerate(scores))
            chosen.append([(of_query[one][0], scores[one], rank) for one, rank in best[: query.k]])
        return chosen

    def _allowed(
        self, connection: sqlite3.Connection, view: View, condition: Filter | None
    ) -> tuple[np.ndarray | None, int]:
        """Bits of the living places whose documents pass, and how many these are; kept for the next such query."""
        if condition is None:
            return view.bits, view.count
        with self._filters_lock:
            kept = self._filters.get((condition, view.revision))
        if kept is None:
            passing = self._passing(connection, view, condition) & view.living
            kept = _bits(passing), int(np.count_nonzero(passing))
            with self._filters_lock:
                self._filters[condition, view.revision] = kept
        return kept

    def _passing(self, connection: sqlite3.Connection, view: View, condition: Filter) -> np.ndarray:
        """Which places pass, bool [n]."""
        match condition:
            case And(parts):
                every = (self._passing(connection, view, part) for part in parts)
                return reduce(np.logical_and, every, np.ones(len(view.rows), bool))
            case Or(parts):
                every = (self._passing(connection, view, part) for part in parts)
                return reduce(np.logical_or, every, np.zeros(len(view.rows), bool))
            case Not(part):
                return ~self._passing(connection, view, part)
            case _:
                documents = self.database.passing(connection, condition)
                first, end = (
                    np.searchsorted(view.known.documents, documents, side) for side in ("left", "right")
                )
                steps = np.zeros(len(view.rows) + 1, np.int8)
                steps[first[first < end]] += 1
                steps[end[first < end]] -= 1
                return np.cumsum(steps[:-1], dtype=np.int8) > 0

    def problems(self, *, deep: bool) -> list[str]:
        """What is wrong, a sentence each."""
        with self.reading() as (connection, _):
            return self._problems(connection, deep=deep)

    def _problems(self, connection: sqlite3.Connection, *, deep: bool) -> list[str]:
        """Also of a file in which SQLite itself finds no way; nothing once the knowledge base is closed."""
        connection.set_progress_handler(self._stop.is_set, 10_000)  # of a long check nobody waits for the end
        try:
            with disk_errors("checking"):
                problems = [*self.database.counted(connection)]
                return problems + ([*self.database.changed(connection)] if deep else [])
        except (KnowledgeBaseDamaged, ValueError, TypeError) as error:  # values that are no text, no number
            return [str(error) or type(error).__name__]
        except StoreUnavailable:
            if self._stop.is_set():
                return []
            raise
        finally:
            connection.set_progress_handler(None, 0)

    # Writing

    def write(self, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store."""
        with self._lock, disk_errors("writing"):
            with self.database.snapshot() as connection:
                stored = self.database.documents(connection, [document.key for document in documents])
            same = {d.key for d in documents if not _is_news(d, stored.get(d.key))}
            fresh = [document for document in documents if document.key not in same]
            if fresh:
                self._batch(fresh, [stored[document.key] for document in fresh if document.key in stored])
        return [
            Written(d.key, len(d.references), d.key in stored and d.key not in same, d.key in same)
            for d in documents
        ]

    def delete(self, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        with self._lock, disk_errors("deleting"):
            with self.database.snapshot() as connection:
                stored = list(self.database.documents(connection, keys).values())
            if stored:
                self._batch([], stored)
            return len(stored), sum(document.row_count for document in stored)

    def _batch(self, fresh: Sequence[NewDocument], removed: Sequence[Stored]) -> None:
        """One batch, whole or not at all. Its vectors are in the index before anybody may find them."""
        if self._stop.is_set():
            raise KnowledgeBaseNotFound("the knowledge base was deleted meanwhile")
        before, batch = self._view, None
        try:
            with self.database.batch() as batch:
                batch.begin_at(before.last_row + 1)
                for document in removed:
                    batch.remove(document)
                vectors = [unit(np.stack([r.vector for r in document.references])) for document in fresh]
                for new, of_document in zip(fresh, vectors, strict=True):
                    batch.add(new, of_document)
                if vectors:
                    before.index.add(np.concatenate(vectors))
                after = before.after(batch.revision.number, batch.added, removed)
        except BaseException:
            self._forget(before, batch)
            raise
        self._view = after
        self.database.note_commit(batch.revision.number)

    def _forget(self, before: View, batch: Batch | None) -> None:
        """What a batch that failed added to the index stays there, and nobody finds it."""
        more = before.index.count - len(before.rows)
        if batch is not None and more:
            self._view = before.after(before.revision, _only(batch.added, slice(more)), [], shown=False)

    # In the background

    def maintain(self) -> list[str]:
        """Compares what was left at the start, saves the index or builds it again; returns the problems found."""
        if self._unchecked:
            problems = self.problems(deep=True)
            self._unchecked = False
            if problems or self._stop.is_set():
                return problems
        if self._writable:
            view = self._view
            if self._too_many(len(view.rows) - view.count, len(view.rows)):
                self._build_again()
            if abs(len(self._view.rows) - self._saved_rows) > self._rules.save_share * self._saved_rows:
                self.save()
            with self._lock, disk_errors("giving space back"):
                if not self._stop.is_set():
                    self.database.give_back()
        return []

    def _too_many(self, dead: int, rows: int) -> bool:
        return dead >= max(self._rules.dead_rows, self._rules.dead_share * rows)

    def _build_again(self) -> None:
        """An index of the living alone; searches and writes go on meanwhile."""
        index = VectorIndex(self._dimension)
        with self.reading() as (connection, view):
            known = _only(view.known, view.living)
            for start in range(0, len(known.rows), _LOADED_ROWS):
                if self._stop.is_set():
                    return
                those = known.rows[start : start + _LOADED_ROWS].tolist()
                index.add(self.database.vectors(connection, those, self._dimension))
        with self._lock, self.reading() as (connection, now):
            living = _only(now.known, now.living)
            built = View.of(now.revision, index, known, np.isin(known.rows, living.rows))
            self._view = self._with_new(connection, built, living)
            self._saved_rows = 0

    def save(self) -> None:
        """Writes the index beside the data."""
        with self._lock:
            view = self._view
            if not self._stop.is_set():
                view.index.save(self.folder / _INDEX, view.rows, view.revision)
                self._saved_rows = len(view.rows)

    def close(self) -> None:
        """Lets go of the files; keeps the index beside them."""
        with self._lock:
            if self._writable and not self._stop.is_set() and len(self._view.rows) != self._saved_rows:
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


def unit(vectors: np.ndarray) -> np.ndarray:
    """The vectors as float32 [n, dimension] at length one, so that inner products are cosines."""
    vectors = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(np.abs(lengths - 1) < 1e-6, vectors, vectors / lengths)


def _is_news(document: NewDocument, stored: Stored | None) -> bool:
    """Whether a document is to be written where this one is stored."""
    there = None if stored is None else stored.content_hash
    return there != document.content_hash and document.replaces in (None, there)


def _only(references: Added, those: np.ndarray | slice) -> Added:
    return Added(*(column[those] for column in references))


def _bits(places: np.ndarray) -> np.ndarray:
    return np.packbits(places, bitorder="little")
