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
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cachetools import LRUCache

from memory_model.words import ranked
from memory_service.errors import KnowledgeBaseDamaged, KnowledgeBaseNotFound, StoreUnavailable
from memory_service.ops.logs import logger
from memory_service.stores import (
    Found,
    NewDocument,
    Query,
    Retrieved,
    Revision,
    Statistics,
    StoredMemory,
    Written,
)
from memory_service.stores.filters import And, Filter, Not, Or, matches
from memory_service.stores.local.index import VectorIndex
from memory_service.stores.local.sqlite import Added, Batch, Database, Stored, disk_errors

_DATA, _INDEX = "documents.sqlite3", "index.faiss"
_LOADED_ROWS = 4096
_KEPT_FILTERS = 32
_PUBLISHED_SOON_S = 0.0005
_KEYS_AT_ONCE = 1000


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


class View(NamedTuple):
    """The vectors that searches find after one batch, by their places in the index.

    rows, documents: of the table, ascending, int64 [n]; living: bool [n]; bits: of `living`, None where all live.
    """

    revision: int
    index: VectorIndex
    rows: np.ndarray
    documents: np.ndarray
    living: np.ndarray
    bits: np.ndarray | None
    count: int

    @classmethod
    def of(
        cls, revision: int, index: VectorIndex, rows: np.ndarray, documents: np.ndarray, living: np.ndarray
    ) -> View:
        """The two last fields follow from the others."""
        count = int(np.count_nonzero(living))
        return cls(revision, index, rows, documents, living, None if count == len(living) else _bits(living), count)

    def after(self, revision: int, added: Added, removed: Sequence[Stored], *, shown: bool = True) -> View:
        """With the references of a batch, without those of removed documents. shown: whether the new ones live."""
        living = np.concatenate([self.living, np.full(len(added.rows), shown)])
        for document in removed:
            first = int(np.searchsorted(self.rows, document.first_row))
            living[first : first + document.row_count] = False
        rows, documents = (np.concatenate(parts) for parts in zip(self[2:4], added, strict=True))
        return View.of(revision, self.index, rows, documents, living)


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
            self._database = Database(folder / _DATA, create=create, writable=writable)
            try:
                self._unchecked = writable and not create
                with self._database.snapshot() as connection:
                    self._database.require_newest(self._database.revision(connection).number)
                    if self._unchecked and (folder / _DATA).stat().st_size <= rules.start_check_bytes:
                        if problems := self._problems(connection, deep=True):
                            raise KnowledgeBaseDamaged("; ".join(problems))
                        self._unchecked = False
                    self._view = self._loaded(connection)
            except BaseException:
                self._database.close()
                raise

    def _loaded(self, connection: sqlite3.Connection) -> View:
        """The saved index with what came since; one that is missing, harmed or too old is built again."""
        revision, there = self._database.revision(connection).number, self._database.added(connection, -1)
        saved, index, rows = None, VectorIndex(self._dimension), np.empty(0, np.int64)
        if (self.folder / _INDEX).is_file():
            saved = VectorIndex.load(self.folder / _INDEX, self._dimension)
            if saved is None:
                logger().warning("index_built_again", file=str(self.folder / _INDEX), problem="it is not whole")
        if saved is not None and saved.revision <= revision and len(saved.rows):
            known = there.rows[there.rows <= saved.rows[-1]]
            dead = len(saved.rows) - len(known)
            if np.isin(known, saved.rows).all() and not self._too_many(dead, len(saved.rows)):
                index, rows = saved.index, saved.rows
                self._saved_rows = len(rows)
        living = np.isin(rows, there.rows)
        documents = np.zeros(len(rows), np.int64)
        documents[living] = there.documents[np.searchsorted(there.rows, rows[living])]
        view = View.of(revision, index, rows, np.maximum.accumulate(documents), living)
        return self._with_new(connection, view, there)

    def _with_new(self, connection: sqlite3.Connection, view: View, there: Added) -> View:
        """The view with those of the references that it has not yet."""
        new = there.rows > (view.rows[-1] if len(view.rows) else -1)
        added = Added(there.rows[new], there.documents[new])
        for start in range(0, len(added.rows), _LOADED_ROWS):
            rows = added.rows[start : start + _LOADED_ROWS].tolist()
            view.index.add(self._database.vectors(connection, rows, self._dimension))
        return view.after(view.revision, added, []) if len(added.rows) else view

    @contextlib.contextmanager
    def _reading(self) -> Iterator[tuple[sqlite3.Connection, View]]:
        """A connection and the view of the commit that it sees."""
        with disk_errors("reading"):
            while True:
                if self._stop.is_set():
                    raise KnowledgeBaseNotFound("the knowledge base was deleted meanwhile")
                with self._database.snapshot() as connection:
                    revision, view = self._database.revision(connection), self._view
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
                last = int(self._view.rows[-1]) if len(self._view.rows) else -1
                view = self._with_new(connection, self._view, self._database.added(connection, last))
                if view.count != revision.memories:  # some are gone
                    living = np.isin(view.rows, self._database.added(connection, -1).rows)
                    view = View.of(0, view.index, view.rows, view.documents, living)
                self._view = view._replace(revision=revision.number)
            return self._view

    # Reading

    def retrieve(self, query: Query) -> Retrieved:
        """See Store."""
        began = time.perf_counter_ns()
        with self._reading() as (connection, view):
            bits, count = (view.bits, view.count) if query.filter is None else self._allowed(connection, view, query.filter)
            wanted = max(query.k, query.candidates) if any(query.words) else query.k
            near = view.index.search(unit(query.vectors), wanted, bits, count)
            if (least := query.minimum_score) is not None:
                near = [[one for one in of_query if one[1] >= least] for of_query in near]
            searched = time.perf_counter_ns()
            chosen = self._ranked(connection, view, query, near)
            ended = time.perf_counter_ns()
            known = self._database.references(
                connection, list({row for of_query in chosen for row, _, _ in of_query}), texts=query.return_text
            )
            hits = []
            for of_query in chosen:
                hits.append([])
                for row, score, rank_score in of_query:
                    if (one := known.get(row)) is None:
                        raise KnowledgeBaseDamaged(f"memory row {row} has no text: run `memory-service doctor`")
                    hits[-1].append(
                        Found(
                            one.memory_id, score, one.key, one.title, one.chunk, one.crc32c,
                            one.text if query.return_text else None, rank_score,
                            json.loads(one.metadata) if query.return_metadata else None,
                        )
                    )  # fmt: skip
            sent = {row: one.crc32c for row, one in known.items() if one.memory_id not in query.held_ids}
            read = self._database.payloads(connection, sent)
        payloads = {known[row].memory_id: payload for row, payload in read.items()}
        search_us, rank_us = (searched - began) // 1000, (ended - searched) // 1000 if any(query.words) else 0
        return Retrieved(hits, payloads, search_us + rank_us, (time.perf_counter_ns() - ended) // 1000, rank_us)

    def _ranked(
        self, connection: sqlite3.Connection, view: View, query: Query, near: list[list[tuple[int, float]]]
    ) -> list[list[tuple[int, float, float]]]:
        """(row, score, rank score) of the first k of each query, by vector and words where it has words."""
        rows = [view.rows[[place for place, _ in of_query]].tolist() if of_query else [] for of_query in near]
        by_words = [number for number in range(len(near)) if query.words and query.words[number]]
        words = self._database.words(connection, list({row for number in by_words for row in rows[number]}))
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
            chosen.append([(rows[number][place], scores[place], rank) for place, rank in best[: query.k]])
        return chosen

    def _allowed(self, connection: sqlite3.Connection, view: View, condition: Filter) -> tuple[np.ndarray, int]:
        """Bits of the living places whose documents pass, and how many these are; kept for the next such query."""
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
                documents = self._database.passing(connection, condition)
                first, end = (np.searchsorted(view.documents, documents, side) for side in ("left", "right"))
                steps = np.zeros(len(view.rows) + 1, np.int8)
                steps[first[first < end]] += 1
                steps[end[first < end]] -= 1
                return np.cumsum(steps[:-1], dtype=np.int8) > 0

    def documents(self, keys: Sequence[str]) -> dict[str, tuple[Stored, list[tuple[int, str]]]]:
        """Documents by their keys, each with (memory id, text) of its references; absent ones are left out."""
        with self._reading() as (connection, _):
            found = self._database.documents(connection, keys)
            return {key: (document, self._database.texts(connection, document)) for key, document in found.items()}

    def revision(self) -> Revision:
        """See Store."""
        with self._reading() as (connection, _):
            return self._database.revision(connection)

    def memories(self, after_id: int | None, count: int) -> list[StoredMemory]:
        """See Store."""
        with self._reading() as (connection, _):
            rows = self._database.rows_after(connection, after_id, count)
            known = self._database.references(connection, rows)
            vectors = dict(zip(sorted(rows), self._database.vectors(connection, rows, self._dimension), strict=True))
            payloads = self._database.payloads(connection, {row: known[row].crc32c for row in rows})
        return [
            StoredMemory(one.memory_id, one.key, one.title, one.chunk, one.text, vectors[row], payloads[row], one.crc32c)
            for row in rows
            for one in [known[row]]
        ]

    def keys(self, prefix: str, after_key: str, count: int, condition: Filter | None) -> list[str]:
        """See Store; no key is empty, so '' begins at the first."""
        with self._reading() as (connection, _):
            if condition is None:
                return [key for key, _ in self._database.keys(connection, prefix, after_key, count)]
            found: list[str] = []
            while len(found) < count and (
                page := self._database.keys(connection, prefix, after_key, _KEYS_AT_ONCE)
            ):
                found += [key for key, metadata in page if matches(condition, json.loads(metadata))]
                after_key = page[-1][0]
            return found[:count]

    def unwritten(self, count: int) -> list[str]:
        """See Store."""
        with self._reading() as (connection, _):
            return self._database.unwritten(connection, count)

    def statistics(self) -> Statistics:
        """See Store."""
        with self._reading() as (connection, _):
            *sums, unwritten = self._database.sums(connection)
        files = [path for path in self.folder.iterdir() if path.is_file()]
        return Statistics(*sums, sum(path.stat().st_blocks * 512 for path in files), unwritten)

    def problems(self, *, deep: bool) -> list[str]:
        """What is wrong, a sentence each."""
        with self._reading() as (connection, _):
            return self._problems(connection, deep=deep)

    def _problems(self, connection: sqlite3.Connection, *, deep: bool) -> list[str]:
        """Also of a file in which SQLite itself finds no way; nothing once the knowledge base is closed."""
        connection.set_progress_handler(self._stop.is_set, 10_000)  # of a long check nobody waits for the end
        try:
            with disk_errors("checking"):
                problems = [*self._database.counted(connection)]
                return problems + ([*self._database.changed(connection)] if deep else [])
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
        with self._lock, disk_errors("writing"), self._database.snapshot() as connection:
            stored = self._database.documents(connection, [document.key for document in documents])
        with self._lock, disk_errors("writing"):
            hashes = {key: document.content_hash for key, document in stored.items()}
            same = {d.key for d in documents if hashes.get(d.key) == d.content_hash}
            same |= {d.key for d in documents if d.replaces not in (None, hashes.get(d.key))}
            fresh = [document for document in documents if document.key not in same]
            if fresh:
                self._batch(fresh, [stored[document.key] for document in fresh if document.key in stored])
        return [
            Written(d.key, len(d.references), replaced=d.key in stored and d.key not in same, unchanged=d.key in same)
            for d in documents
        ]

    def delete(self, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        with self._lock, disk_errors("deleting"):
            with self._database.snapshot() as connection:
                stored = list(self._database.documents(connection, keys).values())
            if stored:
                self._batch([], stored)
            return len(stored), sum(document.row_count for document in stored)

    def _batch(self, fresh: Sequence[NewDocument], removed: Sequence[Stored]) -> None:
        """One batch, whole or not at all. Its vectors are in the index before anybody may find them."""
        if self._stop.is_set():
            raise KnowledgeBaseNotFound("the knowledge base was deleted meanwhile")
        before, batch = self._view, None
        try:
            with self._database.batch() as batch:
                batch.begin_at(int(before.rows[-1]) + 1 if len(before.rows) else 0)
                for document in removed:
                    batch.remove(document)
                vectors = [unit(np.stack([r.vector for r in document.references])) for document in fresh]
                for document, of_document in zip(fresh, vectors, strict=True):
                    batch.add(document, of_document)
                if vectors:
                    before.index.add(np.concatenate(vectors))
        except BaseException:
            self._forget(before, batch)
            raise
        self._view = before.after(batch.revision.number, batch.added, removed)
        self._database.note_commit(batch.revision.number)

    def _forget(self, before: View, batch: Batch | None) -> None:
        """What a batch that failed added to the index stays there, and nobody finds it."""
        more = before.index.count - len(before.rows)
        if batch is not None and more:
            added = Added(*(column[:more] for column in batch.added))
            self._view = before.after(before.revision, added, [], shown=False)

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
                self._build_again(view)
            if abs(len(self._view.rows) - self._saved_rows) > self._rules.save_share * self._saved_rows:
                self.save()
            with self._lock, disk_errors("giving space back"):
                if not self._stop.is_set():
                    self._database.give_back()
        return []

    def _too_many(self, dead: int, rows: int) -> bool:
        return dead >= max(self._rules.dead_rows, self._rules.dead_share * rows)

    def _build_again(self, view: View) -> None:
        """An index of the living alone; searches and writes go on meanwhile."""
        index = VectorIndex(self._dimension)
        with self._reading() as (connection, view):
            rows, documents = view.rows[view.living], view.documents[view.living]
            for start in range(0, len(rows), _LOADED_ROWS):
                if self._stop.is_set():
                    return
                those = rows[start : start + _LOADED_ROWS].tolist()
                index.add(self._database.vectors(connection, those, self._dimension))
        with self._lock, self._reading() as (connection, now):
            living = np.isin(rows, now.rows[now.living])
            built = View.of(now.revision, index, rows, documents, living)
            first = np.searchsorted(now.rows, rows[-1], "right") if len(rows) else 0
            new = np.arange(len(now.rows)) >= first
            new &= now.living
            self._view = self._with_new(connection, built, Added(now.rows[new], now.documents[new]))
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
            self._database.close()

    def drop(self) -> None:
        """Removes the folder."""
        self._stop.set()
        with self._lock:
            self._database.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def unit(vectors: np.ndarray) -> np.ndarray:
    """The vectors as float32 [n, dimension] at length one, so that inner products are cosines."""
    vectors = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(np.abs(lengths - 1) < 1e-6, vectors, vectors / lengths)


def _bits(places: np.ndarray) -> np.ndarray:
    return np.packbits(places, bitorder="little")

