"""One knowledge base in a folder: searched in memory, written in batches, compacted in the background.

    CURRENT       name of the present generation and its CRC-32C
    g0001/        its files (`generation`)

Other processes may read at the same time: see `open_reading`.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from memory_model.errors import Memory3Error
from memory_service.errors import KnowledgeBaseDamaged, KnowledgeBaseNotFound
from memory_service.stores import NewDocument, Query, Retrieved, StoredMemory, Written
from memory_service.stores.digest import digest
from memory_service.stores.local.commits import Totals
from memory_service.stores.local.compaction import compacted
from memory_service.stores.local.current import (
    follow_current,
    read_current,
    refuse_marked,
    state_of,
    write_current,
)
from memory_service.stores.local.disk import disk_errors, sync_folder
from memory_service.stores.local.generation import Generation
from memory_service.stores.local.living import Living
from memory_service.stores.local.rules import LocalRules
from memory_service.stores.local.stored_document import StoredRow, now_ms, to_stored
from memory_service.stores.local.vector_index import VectorIndex
from memory_service.stores.local.view import View, unit
from memory_service.stores.word_ranking import WordRanking

_FIRST = "g0001"
_READERS_PATIENCE = 4


class LocalKnowledgeBase:
    """Reading is thread-safe; writes follow one another. `maintain` has one caller, a thread of the store."""

    def __init__(
        self,
        folder: Path,
        dimension: int,
        rules: LocalRules,
        generation: Generation,
        *,
        writable: bool = True,
    ) -> None:
        self.folder = folder
        self._dimension = dimension
        self._rules = rules
        self._writable = writable
        self._write_lock = threading.RLock()
        self._maintenance = threading.Lock()
        self._stop = threading.Event()
        self._unchecked = False
        self._saved_rows = 0
        self._current = (0, 0)
        self._view = self._view_of(generation)

    def _view_of(self, generation: Generation, index: VectorIndex | None = None) -> View:
        """The view of a generation that was opened, with the index beside it or the one given."""
        totals = generation.totals
        self._saved_rows = 0
        if index is None:
            index = VectorIndex(self._dimension, self._rules.index)
            if index.load(generation.folder, totals.rows, mapped=not self._writable):
                self._saved_rows = index.covered
        dead = generation.documents.dead_rows(-1, totals.sequence)
        return View(generation, Living.of(totals.rows, dead), index, totals.rows)

    @classmethod
    def create(cls, folder: Path, dimension: int, rules: LocalRules) -> LocalKnowledgeBase:
        """A new, empty one; the folder is there whole or, after a crash, nobody's."""
        with disk_errors("creating a knowledge base"):
            folder.mkdir()
            generation = Generation.create(folder / _FIRST, dimension, Totals())
            write_current(folder, _FIRST)
            sync_folder(folder.parent)
        return cls(folder, dimension, rules, generation)

    @classmethod
    def open(cls, folder: Path, dimension: int, rules: LocalRules) -> LocalKnowledgeBase:
        """One that is there; raises KnowledgeBaseDamaged for whatever is not as it was written."""
        with disk_errors("opening the knowledge base"):
            name = read_current(folder)
            for other in folder.iterdir():
                if other.is_dir() and other.name != name:
                    shutil.rmtree(other)  # of a compaction that did not end, or the one before it
            for unfinished in folder.rglob(".*.new"):
                unfinished.unlink()
            if not (folder / name).is_dir():
                raise KnowledgeBaseDamaged(f"folder {name} is missing")
        generation = Generation.open(folder / name, dimension)
        try:
            small = generation.file_bytes <= rules.start_check_bytes
            if small and (problems := generation.changed_bytes()):
                raise KnowledgeBaseDamaged("; ".join(problems))
            base = cls(folder, dimension, rules, generation)
        except BaseException:
            generation.close()
            raise
        base._unchecked = not small
        return base

    @classmethod
    def open_reading(cls, folder: Path, dimension: int, rules: LocalRules) -> LocalKnowledgeBase:
        """One that another process may be writing to; every read takes notice of the batches finished before it."""
        with disk_errors("opening the knowledge base"):
            state, generation = follow_current(folder, dimension)
        # The process that writes saves its index again and again: to wait for that costs less than to build one.
        rules = replace(
            rules, index=replace(rules.index, tail_rows=_READERS_PATIENCE * rules.index.tail_rows)
        )
        base = cls(folder, dimension, rules, generation, writable=False)
        base._current = state
        return base

    @property
    def totals(self) -> Totals:
        """After the newest batch."""
        return self._now().generation.totals

    # Reading

    def _now(self) -> View:
        """The present view; where another process writes, with all that it finished."""
        view = self._view
        if self._writable:
            return view
        refuse_marked(self.folder)
        if not self._is_behind(view):
            return view
        with self._write_lock:
            if state_of(self.folder) != self._current:
                self._current, generation = follow_current(self.folder, self._dimension)
                self._view.generation.retire(remove=False)
                self._view = self._view_of(generation)
            view = self._view
            died = view.generation.follow()
            if died is not None:
                rows = view.generation.totals.rows
                self._view = replace(view, rows=rows, living=view.living.after(rows, died))
            return self._view

    def _is_behind(self, view: View) -> bool:
        return view.generation.commits.has_more() or state_of(self.folder) != self._current

    def retrieve(self, queries: Sequence[Query], kb: int, ranking: WordRanking) -> list[Retrieved]:
        """See Store; `kb` is the number that `ranking` knows the knowledge base by."""
        try:
            return self._now().retrieve(queries, kb, ranking)
        except (OSError, sqlite3.Error):  # the usual way is not to cost a generator
            with disk_errors("reading"):
                raise

    def retrieve_at_once(self, query: Query) -> Retrieved | None:
        """See Store."""
        try:
            return self._view.retrieve_at_once(query)
        except (OSError, sqlite3.Error):
            with disk_errors("reading"):
                raise

    def living(self, keys: Sequence[str]) -> dict[str, StoredRow]:
        """The documents of these keys; absent ones are left out."""
        with disk_errors("reading"):
            return self._now().generation.documents.living(keys)

    def references(self, document: StoredRow) -> list[tuple[int, str]]:
        """(memory id, text) of a document's references, in order."""
        with disk_errors("reading"):
            return self._now().generation.documents.references(document.rows)

    def memories(self, after_id: int | None, count: int) -> list[StoredMemory]:
        """See Store."""
        with disk_errors("reading"):
            return self._now().memories(after_id, count)

    def sums(self) -> tuple[int, int, int, int, int, int]:
        """(documents, references, payload bytes, text bytes, bytes on disk, documents without payloads)."""
        with disk_errors("reading"):
            documents = self._now().generation.documents
            return (*documents.sums(), self._view.generation.disk_bytes, documents.unwritten_count())

    def keys(self, prefix: str, after_key: str, count: int) -> list[str]:
        """Keys of documents; no key is empty, so '' begins at the first."""
        with disk_errors("reading"):
            return self._now().generation.documents.keys(prefix, after_key, count)

    def unwritten(self, count: int) -> list[str]:
        """Keys of documents without payloads."""
        with disk_errors("reading"):
            return self._now().generation.documents.unwritten(count)

    def problems(self, *, deep: bool) -> list[str]:
        """What is wrong, a sentence each."""
        with self._write_lock:
            generation = self._now().generation
            return generation.problems(counted=self._writable) or (generation.changed_bytes() if deep else [])

    # Writing

    def write(self, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store."""
        with self._write_lock, disk_errors("writing"):
            self._require_open()
            stored = self.living([document.key for document in documents])
            fresh = [
                d for d in documents if d.key not in stored or stored[d.key].content_hash != d.content_hash
            ]
            if fresh:
                self._batch(fresh, [stored[document.key] for document in fresh if document.key in stored])
            new = {document.key for document in fresh}
            return [
                Written(
                    d.key, len(d.references), replaced=d.key in stored and d.key in new, unchanged=d.key not in new
                )
                for d in documents
            ]  # fmt: skip

    def delete(self, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        with self._write_lock, disk_errors("deleting"):
            self._require_open()
            stored = list(self.living(keys).values())
            if stored:
                self._batch([], stored)
            return len(stored), sum(document.row_count for document in stored)

    def _require_open(self) -> None:
        if self._stop.is_set():
            raise KnowledgeBaseNotFound("the knowledge base was deleted meanwhile")

    def _batch(self, fresh: Sequence[NewDocument], removed: Sequence[StoredRow]) -> None:
        """One batch, whole or not at all; the order of its steps is in `generation`."""
        view = self._view
        generation, before = view.generation, view.generation.totals
        references = [reference for document in fresh for reference in document.references]
        gone = [memory_id for d in removed for memory_id, _ in generation.documents.references(d.rows)]
        added = [reference.memory_id for reference in references]
        totals = Totals(
            sequence=before.sequence + 1,
            batch=max(time.time_ns(), before.batch + 1),
            rows=before.rows + len(references),
            documents=before.documents + len(fresh) - len(removed),
            memories=before.memories + len(added) - len(gone),
            digest=before.digest ^ digest(added) ^ digest(gone),
        )
        banks: list[tuple[int, int, int]] = []
        if references:
            vectors = np.stack([unit(r.vector) for r in references])
            banks = generation.append(
                added, [r.payload for r in references], [r.crc32c for r in references], vectors
            )
        new, row, now = [], before.rows, now_ms()
        for document in fresh:
            new.append((to_stored(document, row, now), [(r.memory_id, r.text) for r in document.references]))
            row += len(document.references)
        generation.commit(new, removed, totals, banks)
        living = view.living.after(totals.rows, [document.rows for document in removed])
        self._view = replace(view, rows=totals.rows, living=living)
        generation.note_commit()

    # In the background

    def maintain(self) -> list[str]:
        """Grows the index, compacts, compares checksums that were left at the start; returns the problems found."""
        with self._maintenance:
            view = self._view
            if self._stop.is_set():
                return []
            if self._unchecked:
                problems = view.generation.changed_bytes(self._stop)
                self._unchecked = False
                if problems:
                    return problems
            if not self._writable:
                view.index.load(
                    view.generation.folder, view.rows
                )  # what the process that writes has saved since
            if view.index.needs_growth(view.rows):
                view.index.grow(view.generation.vectors.rows(view.rows), self._stop)
            if not self._writable:
                return []
            if self._needs_saving(view):
                self._save(view)
            if self._needs_compaction(view):
                self._compact()
        return []

    def needs_maintenance(self) -> bool:
        """Whether `maintain` has something to do."""
        view = self._view
        if not self._writable:
            return view.index.needs_growth(view.rows)
        growing = view.index.needs_growth(view.rows) or self._needs_saving(view)
        return self._unchecked or growing or self._needs_compaction(view)

    def compact(self) -> None:
        """Writes the living documents anew without the dead ones' rows."""
        with self._maintenance:
            self._compact()

    def _needs_saving(self, view: View) -> bool:
        return view.index.covered > self._saved_rows * (1 + self._rules.save_growth)

    def _needs_compaction(self, view: View) -> bool:
        dead = view.living.dead
        return dead >= max(self._rules.compact_dead_rows, self._rules.compact_dead_share * view.rows)

    def _compact(self) -> None:
        old = self._view.generation
        with disk_errors("compacting"):
            change = compacted(old, self.folder, self._dimension, self._rules.index, self._stop)
            if change is None:
                return
            with self._write_lock:
                if self._stop.is_set():
                    change.generation.retire(remove=True)
                    return
                change.catch_up(old)
                change.index.save(change.generation.folder)  # processes that read find it there
                write_current(self.folder, change.generation.folder.name)
                self._view = self._view_of(change.generation, change.index)
                self._saved_rows = change.index.covered
                old.retire(remove=True)

    def settle(self) -> None:
        """Covers the last rows, too few for `maintain`; called when nothing is being written."""
        with self._maintenance:
            view = self._view
            if not view.index.needs_growth(view.rows, tail_rows=1) or self._stop.is_set():
                return
            if not self._writable:
                view.index.load(view.generation.folder, view.rows, mapped=True)
            else:
                view.index.grow(view.generation.vectors.rows(view.rows), self._stop)
                if view.index.covered > self._saved_rows * (1 + self._rules.save_growth_idle):
                    self._save(view)

    def _save(self, view: View) -> None:
        with disk_errors("saving the index"):
            view.index.save(view.generation.folder)
            self._saved_rows = view.index.covered

    def close(self) -> None:
        """Lets go of the files; keeps the index beside them."""
        self._stop.set()
        with self._maintenance, self._write_lock:
            view = self._view
            if self._writable and view.index.covered > self._saved_rows:
                with contextlib.suppress(Memory3Error):  # it is a copy: it will be made again
                    self._save(view)
            if self._writable:
                with contextlib.suppress(Memory3Error), disk_errors("closing"):
                    view.generation.seal()
            view.generation.close()

    def drop(self) -> None:
        """Removes the folder."""
        self._stop.set()
        with self._maintenance, self._write_lock:
            self._view.generation.close()
            shutil.rmtree(self.folder, ignore_errors=True)
