"""One knowledge base in a folder: SQLite and the index of its vectors, searched and written together.

A batch adds its vectors to the index, commits, and then shows them to searches by a new `View`. A search takes the
view that belongs to the commit that its transaction sees, so it finds each document once and whole.

A large batch makes its rows and adds its vectors a slice at a time before it takes its turn to commit: small ones come
in between.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from memory3.errors import Memory3Error
from memory3.text.words import ranked
from memory_service.errors import KnowledgeBaseDamaged, StoreUnavailable
from memory_service.stores.filters import Filter
from memory_service.stores.local.database import Database
from memory_service.stores.local.disk import disk_errors, sync_folder
from memory_service.stores.local.groups import Rows
from memory_service.stores.local.index import VectorIndex
from memory_service.stores.local.rows import DocumentRow, Tables, Transaction, tables_of
from memory_service.stores.store import (
    KnowledgeBase,
    NewDocument,
    Query,
    Retrieved,
    WriterIdentity,
    Written,
    deleted_meanwhile,
)
from memory_service.telemetry.logs import logger

START_CHECK_BYTES = 1 << 30
"""Up to this size everything in a file is compared before it is served; a payload is compared whenever it is read."""
SAVE_ROWS, SAVE_SHARE = 1024, 0.25
"""So many vectors that were added since the index was saved, and such a share of it, make a batch save it."""
LIVING_SHARE = 0.6
"""An index of which fewer vectors belong to references is built again, while it is used."""
_DATA, _INDEX = "documents.sqlite3", "index.faiss"
_SLICE_REFERENCES = 64
"""That a large batch adds to the index before it lets others write; a batch of four such slices is large."""
_LET_WRITE_S = 0.0005
_KEPT_FILTERS = 32
_PUBLISHED_SOON_S = 0.0005
_NEVER_PUBLISHED_S = 1.0
"""After which a commit has no view: the disk failed while it was made, and it was made nevertheless."""


@dataclass(frozen=True)
class View:
    """What searches find after one batch. living: bool [n], the rows of references that are there.

    passing: the rows that filters pass, as far as queries requested them.
    """

    revision: int
    index: VectorIndex
    living: np.ndarray
    passing: dict[Filter | None, Rows]

    @classmethod
    def of(cls, revision: int, index: VectorIndex, living: np.ndarray) -> View:
        """With no filter known yet."""
        return cls(revision, index, living, {None: Rows.of(living)})

    def rows(self, data: Transaction, condition: Filter | None) -> Rows:
        """The rows whose documents pass; kept for the next such query."""
        if (known := self.passing.get(condition)) is None:
            self.passing[condition] = known = Rows.of(data.rows_of(condition, len(self.living)))
            if len(self.passing) > _KEPT_FILTERS:
                self.passing.pop(list(self.passing)[1], None)  # the oldest; the first is no filter
        return known


@dataclass(frozen=True)
class Prepared:
    """A document of a batch with its rows in the index and the tables. vectors: float32 [n, dimension]."""

    document: NewDocument
    rows: np.ndarray
    vectors: np.ndarray
    tables: Tables


class LocalKnowledgeBase:
    """Thread-safe. Writes follow one another, a large one waits for another large one."""

    def __init__(self, folder: Path) -> None:
        """Raises KnowledgeBaseDamaged for whatever is not as it was written."""
        self._folder = folder
        self._lock = threading.RLock()  # of writes
        self._large = threading.Lock()  # of large ones, taken before the other
        self._next_row = 0  # behind those that batches under way have
        self._under_way = False  # a large one: the index has vectors that may come to nothing
        self._closed = False
        self._saved_rows = 0
        self._builder = threading.Thread()
        self._building: VectorIndex | None = None
        with disk_errors("opening the knowledge base"):
            self._database = Database(folder / _DATA)
            try:
                with self._database.reading() as data:
                    if (folder / _DATA).stat().st_size <= START_CHECK_BYTES:
                        data.require_whole()
                    self._database.require_newest(data.revision().number)
                    self.base = data.base()
                    self._dimension = self.base.identity.dimension
                    self._view = self._loaded(data)
                    nul_count = data.count_nul() if self._database.migrated else 0
                for migration in self._database.migrated:
                    logger().info("migrated", migration=migration, knowledge_base=self.base.name)
            except BaseException:
                self._database.close()
                raise
        if nul_count:
            logger().warning(
                "knowledge_base_healed",
                knowledge_base=self.base.name,
                documents=nul_count,
                cause="NUL characters in metadata, which an earlier release took for damage",
            )

    @classmethod
    def create(cls, folder: Path, base: KnowledgeBase) -> LocalKnowledgeBase:
        """A new one; the folder is there whole or not at all."""
        temporary = folder.with_name(f".{folder.name}")
        with disk_errors("creating the knowledge base"):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            Database(temporary / _DATA, base).close()
            sync_folder(temporary)
            temporary.rename(folder)
            sync_folder(folder.parent)
        return cls(folder)

    def _loaded(self, data: Transaction) -> View:
        """The saved index with what came since; one that is missing or harmed is built again."""
        saved = VectorIndex.load(self._folder / _INDEX, self._dimension)
        if saved is not None and saved[1] <= data.revision().number:
            with contextlib.suppress(KnowledgeBaseDamaged):
                self._saved_rows = saved[0].count
                return self._caught_up(saved[0], data)
        (self._folder / _INDEX).unlink(missing_ok=True)  # its rows may be used again
        self._saved_rows = 0
        return self._caught_up(VectorIndex(self._dimension), data)

    def _caught_up(self, index: VectorIndex, data: Transaction) -> View:
        """The view of a state of the data, by an index that gets the vectors it lacks."""
        for rows, vectors in data.vectors(index.next_row, self._dimension):
            index.add(rows, vectors)
        revision, living = data.revision(), data.rows_of(None, index.next_row)
        lacking = living.copy()
        lacking[index.rows()] = False
        for first, end in _ranges(lacking):  # of a batch that was under way while later ones were committed
            for rows, vectors in data.vectors(first, self._dimension, end):
                index.add(rows, vectors)
        if np.count_nonzero(living[index.rows()]) != revision.memories:
            raise KnowledgeBaseDamaged("vectors of memories are lost")
        return View.of(revision.number, index, living)

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[Transaction, View]]:
        """A state of the data, and the view of the commit that it sees."""
        with disk_errors("reading"):
            began = time.monotonic()
            while True:
                self._require_open()
                if time.monotonic() - began > _NEVER_PUBLISHED_S:
                    self._publish_again()
                with self._database.reading() as data:
                    revision, view = data.revision().number, self._view
                    if view.revision == revision:
                        yield data, view
                        return
                time.sleep(_PUBLISHED_SOON_S)  # a batch is committed, its view comes at once

    def _publish_again(self) -> None:
        """Makes the view of the newest commit, where the one that made it could not."""
        with self._lock, self._database.reading() as data:
            if data.revision().number != self._view.revision and not self._closed:
                self._view = self._caught_up(self._view.index, data)

    def _require_open(self) -> None:
        if self._closed:
            raise deleted_meanwhile(self.base)

    def retrieve(self, query: Query) -> Retrieved:
        """See Store."""
        began = time.perf_counter_ns()
        with self.reading() as (data, view):
            wanted = max(query.k, query.candidates) if any(query.words) else query.k
            near = view.index.search(unit(query.vectors), wanted, view.rows(data, query.filter))
            searched = time.perf_counter_ns()
            chosen = _ranked(data, query, near)
            ended = time.perf_counter_ns()
            known = data.found(list({row for of_query in chosen for row, _, _ in of_query}), query)
        hits = [
            [known[row][0]._replace(score=score, rank_score=rank_score) for row, score, rank_score in of_query]
            for of_query in chosen
        ]
        payloads = {one.memory_id: payload for one, payload in known.values() if payload is not None}
        rank_us = (ended - searched) // 1000 if any(query.words) else 0
        fetch_us = (time.perf_counter_ns() - ended) // 1000
        return Retrieved(hits, payloads, (searched - began) // 1000, fetch_us, rank_us)

    # Writing

    def write(self, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store."""
        with disk_errors("writing"):
            if sum(len(document.references) for document in documents) < 4 * _SLICE_REFERENCES:
                with self._lock:
                    stored, fresh = self._fresh(documents)
                    batch = self._prepared(fresh, self._reserved(fresh))
                    self._add_to_index(batch)
                    self._batch(batch, stored)
            else:
                with self._large:
                    stored, fresh = self._written_in_slices(documents)
        written = {document.key for document in fresh}
        return [
            Written(d.key, len(d.references), d.key in stored and d.key in written, d.key not in written)
            for d in documents
        ]

    def _fresh(self, documents: Sequence[NewDocument]) -> tuple[dict[str, DocumentRow], list[NewDocument]]:
        """What is stored by their keys, and those that change it."""
        with self._database.reading() as data:
            stored = data.documents([document.key for document in documents])
        return stored, [document for document in documents if _changes(document, stored.get(document.key))]

    def _written_in_slices(self, documents: Sequence[NewDocument]) -> tuple[dict[str, DocumentRow], list[NewDocument]]:
        """See `_fresh`, as it was when they were committed."""
        with self._lock:
            self._require_open()
            _, fresh = self._fresh(documents)
            first_row = self._reserved(fresh)
            self._under_way = True
        try:
            batch = self._prepared(fresh, first_row)
            rows = np.concatenate([one.rows for one in batch] or [np.zeros(0, np.int64)])
            vectors = np.concatenate([one.vectors for one in batch] or [np.zeros((0, self._dimension), np.float32)])
            index: VectorIndex | None = None
            done = 0
            while True:
                with self._lock:
                    self._require_open()
                    current = self._view.index
                    if current is not index:  # it was built again meanwhile
                        index, done = current, 0
                    if done == len(rows):
                        stored, fresh = self._fresh(fresh)
                        changed = {document.key for document in fresh}
                        self._under_way = False
                        self._batch([one for one in batch if one.document.key in changed], stored)
                        return stored, fresh
                    part = slice(done, done + _SLICE_REFERENCES)
                    current.add(rows[part], vectors[part])
                    done = min(part.stop, len(rows))
                _let_others_write()
        finally:
            self._under_way = False

    def _reserved(self, documents: Sequence[NewDocument]) -> int:
        """The first of as many rows as they have references, which no other batch gets."""
        first_row = max(self._next_row, self._view.index.next_row)
        self._next_row = first_row + sum(len(document.references) for document in documents)
        return first_row

    def _prepared(self, documents: Sequence[NewDocument], first_row: int) -> list[Prepared]:
        prepared = []
        for document in documents:
            vectors = unit(np.stack([reference.vector for reference in document.references]))
            rows = np.arange(first_row, first_row + len(vectors))
            prepared.append(Prepared(document, rows, vectors, tables_of(document, first_row, vectors)))
            first_row += len(vectors)
        return prepared

    def _add_to_index(self, batch: Sequence[Prepared]) -> None:
        self._require_open()
        for one in batch:
            self._view.index.add(one.rows, one.vectors)

    def delete(self, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        with self._lock, disk_errors("deleting"):
            with self._database.reading() as data:
                stored = data.documents(keys)
            self._batch([], stored, removes=True)
            return len(stored), sum(document.row_count for document in stored.values())

    def adopt(self, identity: WriterIdentity) -> KnowledgeBase:
        """See Store."""
        with self._lock, disk_errors("recording the writer"):
            self._require_open()
            base = replace(self.base, identity=identity)
            with self._database.writing() as data:
                data.adopt(base)
            self.base = base
            return base

    def add_reads(self, reads: Mapping[tuple[str, int], int]) -> None:
        """See Store. No batch: what searches find stays."""
        with self._lock, disk_errors("counting reads"):
            self._require_open()
            with self._database.writing() as data:
                data.add_reads(reads)
            self._database.shorten_journal()

    def _batch(self, batch: Sequence[Prepared], stored: Mapping[str, DocumentRow], *, removes: bool = False) -> None:
        """One batch, whole or not at all. Its vectors are in the index, before anybody may find them.

        stored: what the documents of the batch replace, by key; removes: all of these. What a batch that fails has
        added to the index stays there and is found by nobody: no other has its rows.
        """
        keys = list(stored) if removes else [one.document.key for one in batch if one.document.key in stored]
        removed = [stored[key] for key in keys]
        if not (batch or removed):
            return
        self._require_open()
        index, before = self._view.index, self._view.living
        living = np.zeros(max([len(before), *(int(one.rows[-1]) + 1 for one in batch)]), bool)
        living[: len(before)] = before
        with self._database.writing() as data:
            gone = [memory_id for document in removed for memory_id in data.remove(document)]
            for document in removed:
                living[slice(*document.rows)] = False
            if removes:
                data.forget_reads(keys)
            for one in batch:
                data.add(one.tables)
                living[one.rows] = True
            added = [reference.memory_id for one in batch for reference in one.document.references]
            view = View.of(data.count_batch(added, gone), index, living)
        self._view = view
        self._database.note_commit(view.revision)
        self._database.shorten_journal()
        if self._under_way:  # an index with half a batch is neither saved nor taken for worn
            return
        if index.count - self._saved_rows > max(SAVE_ROWS, SAVE_SHARE * self._saved_rows):
            self._save()
        worn = view.passing[None].count < LIVING_SHARE * index.count >= LIVING_SHARE * SAVE_ROWS
        if worn and not self._builder.is_alive():
            self._builder = threading.Thread(target=self._rebuild, name="index-builder", daemon=True)
            self._builder.start()

    def _rebuild(self) -> None:
        """Replaces the index by one without dead vectors; searches and writes go on while it is built."""
        self._building = index = VectorIndex(self._dimension)
        more = True
        try:
            with disk_errors("building the index"):
                while more and not self._closed:
                    with self._database.reading() as data:
                        rows, vectors = next(data.vectors(index.next_row, self._dimension), (np.zeros(0), np.zeros(0)))
                    index.add(rows, vectors)
                    more = len(rows) > SAVE_ROWS
                with self._lock, self._database.reading() as data:
                    if not self._closed:
                        view = self._caught_up(index, data)
                        (self._folder / _INDEX).unlink(missing_ok=True)  # its rows may be used again
                        self._view = view
                        self._save()
        except Memory3Error as error:
            logger().warning("index_not_rebuilt", problem=str(error))
        finally:
            self._building = None

    def reindexing(self, references: int) -> tuple[int, int]:
        """Of so many references those that an index being built has, and those it lacks; 0, 0 while none is built."""
        if (index := self._building) is None:
            return 0, 0
        done = min(index.count, references)
        return done, references - done

    def _save(self) -> None:
        """Writes the index next to the data. It is a copy: if that fails, it is rebuilt later."""
        try:
            self._view.index.save(self._folder / _INDEX, self._view.revision)
        except StoreUnavailable as error:
            logger().warning("index_not_saved", problem=str(error))
        self._saved_rows = self._view.index.count

    def close(self, *, keep: bool = True) -> None:
        """Closes the files. keep: the index is saved; else the knowledge base is deleted, which readers report."""
        self._closed = True
        if self._builder.is_alive():
            self._builder.join()
        with self._lock:
            if keep and self._view.index.count != self._saved_rows:
                self._save()
            self._database.close()


def _let_others_write() -> None:
    """Between two slices: those that wait for their turn get it."""
    time.sleep(_LET_WRITE_S)


def _ranges(member: np.ndarray) -> list[tuple[int, int]]:
    """The ranges in which this is true, bool [n], each with the index behind its last."""
    edges = np.flatnonzero(np.diff(member.astype(np.int8), prepend=0, append=0))
    return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]


def _ranked(
    data: Transaction, query: Query, near: list[list[tuple[int, float]]]
) -> list[list[tuple[int, float, float]]]:
    """(row, score, rank score) of the first k of each query, by vector and words where it has words."""
    by_words = [bool(query.words and query.words[n] and near[n]) for n in range(len(near))]
    rows = {row for n, of_query in enumerate(near) if by_words[n] for row, _ in of_query}
    words = data.words(list(rows)) if rows else {}
    chosen = []
    for number, of_query in enumerate(near):
        scores, least = [score for _, score in of_query], query.minimum_score
        best = [(one, score) for one, score in enumerate(scores) if least is None or score >= least]
        if by_words[number]:
            found = [words[row] for row, _ in of_query]
            best = ranked(
                query.words[number],
                scores,
                [one.text for one in found],
                [one.title for one in found],
                query.maximum_drop,
                least,
            )
        chosen.append([(of_query[one][0], scores[one], rank) for one, rank in best[: query.k]])
    return chosen


def unit(vectors: np.ndarray) -> np.ndarray:
    """The vectors as float32 [n, dimension] at length one, so that inner products are cosines."""
    vectors = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(np.abs(lengths - 1) < 1e-6, vectors, vectors / lengths)


def _changes(document: NewDocument, stored: DocumentRow | None) -> bool:
    return (
        document.changes(None, False) if stored is None else document.changes(stored.content_hash, bool(stored.written))
    )
