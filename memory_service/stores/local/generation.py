"""One generation of a knowledge base's files; compaction writes the next one and then changes over.

    documents.sqlite3      documents, texts, metadata, totals: its commit makes a batch true
    bank-1.records …       payloads
    vectors.f32            vectors
    commits.log            evidence of the finished batches
    index.faiss, .json     a copy of the index, not data

Order of a batch, each step durable before the next: records and vectors behind the rows that are in use; the
documents' commit; the record in the log of commits; then it is acknowledged and can be found. A process that dies
before the commit leaves rows that nobody knows, which the next batch overwrites.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import google_crc32c
import numpy as np

from memory_model.errors import Memory3Error
from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores.local.bank import Bank, record_bytes_for
from memory_service.stores.local.commits import CommitLog, Totals
from memory_service.stores.local.disk import crc_of, disk_errors, sync_folder
from memory_service.stores.local.documents import Documents, has_journal
from memory_service.stores.local.documents_check import every_row, problems_of
from memory_service.stores.local.stored_document import StoredRow
from memory_service.stores.local.vector_file import VectorFile

_DOCUMENTS, _VECTORS, _COMMITS = "documents.sqlite3", "vectors.f32", "commits.log"
_MOST_PROBLEMS = 20


class Generation:
    """The files, open. Reading is thread-safe; there is one writer."""

    def __init__(
        self, folder: Path, documents: Documents, vectors: VectorFile, commits: CommitLog, banks: list[Bank],
        totals: Totals,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.documents = documents
        self.vectors = vectors
        self.commits = commits
        self.banks = banks
        self.totals = totals
        self._retired = self._removed = False

    @classmethod
    def create(cls, folder: Path, dimension: int, totals: Totals) -> Generation:
        """New, empty files in a new folder; `totals` carries on the numbers of batches."""
        folder.mkdir()
        documents = Documents.create(folder / _DOCUMENTS, totals)
        vectors = VectorFile.create(folder / _VECTORS, dimension)
        commits = CommitLog.create(folder / _COMMITS, totals)
        sync_folder(folder)
        return cls(folder, documents, vectors, commits, [], totals)

    @classmethod
    def open(cls, folder: Path, dimension: int, *, writable: bool = True) -> Generation:
        """Files that are there, compared with each other; raises KnowledgeBaseDamaged for what is wrong.

        writable: False where another process may be writing to them; `follow` then takes notice of its batches.
        """
        with contextlib.ExitStack() as opened, disk_errors("opening the knowledge base"):
            crashed = has_journal(folder / _DOCUMENTS)
            commits = CommitLog.open(folder / _COMMITS, writable=writable)
            opened.callback(commits.file.close)
            if writable and not crashed:
                _compare_with_seal(folder / _DOCUMENTS, commits)
            documents = Documents.open(folder / _DOCUMENTS, writable=writable)
            opened.callback(documents.close)
            totals = documents.totals() if writable else commits.last
            vectors = VectorFile.open(folder / _VECTORS, dimension, writable=writable)
            opened.callback(vectors.file.close)
            generation = cls(folder, documents, vectors, commits, [], totals)
            opened.callback(generation.close)
            generation._open_banks(writable=writable)
            generation.compare(counted=writable)
            if writable:
                generation._tidy()
            opened.pop_all()
            return generation

    def _open_banks(self, *, writable: bool) -> None:
        """Opens the banks that are not open yet."""
        for number, first_row, record_bytes in self.documents.banks()[len(self.banks) :]:
            path = self.folder / _bank_name(number)
            self.banks.append(Bank.open(path, first_row, record_bytes, writable=writable))

    def _tidy(self) -> None:
        """Ends what a process that died left: a commit without its record, rows that nobody knows."""
        if self.commits.last != self.totals:
            self.commits.append(self.totals)
        if self.banks:
            self.banks[-1].file.cut_to(self.banks[-1].size_for(self.totals.rows))
        self.vectors.file.cut_to(self.vectors.size_for(self.totals.rows))

    def follow(self) -> list[range] | None:
        """Takes notice of another process's batches: the rows that died by them, or None where there were none."""
        if not self.commits.follow():
            return None
        before, self.totals = self.totals, self.commits.last
        self._open_banks(writable=False)
        return self.documents.dead_rows(before.sequence, self.totals.sequence)

    def compare(self, *, counted: bool = True) -> None:
        """Cheap comparisons of the log of commits, lengths of files and, `counted`, documents; nothing may be written
        meanwhile. Raises KnowledgeBaseDamaged.
        """  # noqa: D205
        totals, last = self.totals, self.commits.last
        if totals.sequence not in (last.sequence, last.sequence + 1) or (
            totals.sequence == last.sequence and totals != last
        ):
            raise KnowledgeBaseDamaged(
                f"{_DOCUMENTS} holds batch {totals.sequence}, {_COMMITS} ends with batch {last.sequence}:"
                " acknowledged documents are lost"
            )
        for number, bank in enumerate(self.banks):
            end = self.banks[number + 1].first_row if number + 1 < len(self.banks) else totals.rows
            bank.file.view(bank.size_for(end))
        if totals.rows and not (self.banks and self.banks[0].first_row == 0):
            raise KnowledgeBaseDamaged(f"{_DOCUMENTS} does not name the bank of the first row")
        self.vectors.rows(totals.rows)
        if not counted:
            return
        documents, references, _, _ = self.documents.sums()
        if (documents, references) != (totals.documents, totals.memories):
            raise KnowledgeBaseDamaged(
                f"{_DOCUMENTS} holds {documents} documents of {references} memories,"
                f" {totals.documents} of {totals.memories} were written"
            )

    # Reading

    def bank_of(self, row: int) -> Bank:
        """The bank that holds a row."""
        for bank in self.banks[::-1]:
            if row >= bank.first_row:
                return bank
        raise KnowledgeBaseDamaged(f"no bank holds row {row}: run `memory-service doctor`")

    @property
    def file_bytes(self) -> int:
        """Bytes of records and vectors, holes included: what a full check reads."""
        return sum(bank.file.size_bytes for bank in self.banks) + self.vectors.file.size_bytes

    @property
    def disk_bytes(self) -> int:
        """What the generation takes on the disk."""
        return sum(path.stat().st_blocks * 512 for path in self.folder.iterdir() if path.is_file())

    # Writing

    def append(
        self, memory_ids: Sequence[int], payloads: Sequence[bytes | memoryview], crcs: Sequence[int],
        vectors: np.ndarray,
    ) -> list[tuple[int, int, int]]:  # fmt: skip
        """Writes records and vectors behind the rows in use, durable but not yet true; returns new banks.

        vectors: float32 [n, dimension] of unit length.
        """
        start, longest = self.totals.rows, max(map(len, payloads))
        vectors = np.ascontiguousarray(vectors, "<f4")
        new = []
        bank = self.banks[-1] if self.banks else None
        if bank is None or not bank.takes(longest):
            number = len(self.banks) + 1
            bank = Bank.create(self.folder / _bank_name(number), start, record_bytes_for(longest))
            new.append((number, start, bank.record_bytes))
        try:
            bank.write(start, memory_ids, payloads, crcs, [google_crc32c.value(v.tobytes()) for v in vectors])
            self.vectors.write(start, vectors)
            bank.file.sync()
            self.vectors.file.sync()
            if new:
                sync_folder(self.folder)
        except BaseException:
            if new:
                bank.file.close()
            raise
        if new:
            self.banks.append(bank)
        return new

    def commit(
        self, new: Sequence[tuple[StoredRow, Sequence[tuple[int, str]]]], removed: Sequence[StoredRow], totals: Totals,
        banks: Sequence[tuple[int, int, int]],
    ) -> None:  # fmt: skip
        """Makes a batch true; raises without a trace of it when that fails."""
        if self.commits.last.sequence != self.totals.sequence or self.commits.seal is not None:
            self.commits.append(
                self.totals
            )  # the disk was full when that batch ended, or this is the first one
        try:
            self.documents.commit(new, removed, totals, banks)
        except BaseException:
            for _ in banks:
                self.banks.pop().file.close()
            raise
        self.totals = totals

    def note_commit(self) -> None:
        """The evidence; the batch may be acknowledged when this returns."""
        self.commits.append(self.totals)

    # Checking

    def problems(self, *, counted: bool = True) -> list[str]:
        """What cheap comparisons say is wrong, a sentence each; see `compare`."""
        try:
            with disk_errors("checking"):
                self.compare(counted=counted)
        except Memory3Error as error:
            return [str(error)]
        return []

    def changed_bytes(self, stop: Event | None = None) -> list[str]:
        """Reads every document, record and vector, dead ones too, and compares the checksums; until `stop` is set.

        Batches may be written meanwhile: what is compared is the state at the beginning.
        """
        problems = problems_of(self.documents)
        if problems:
            return problems
        digest, expected = 0, 0
        with disk_errors("checking"), self.documents.snapshot() as connection:
            totals = self.documents.totals_in(connection)
            for row, memory_id, key, lives in every_row(connection):
                if stop is not None and stop.is_set():
                    return problems
                try:
                    if row != expected:
                        raise KnowledgeBaseDamaged(f"row {expected} has no text")
                    self._check_row(row, memory_id)
                except KnowledgeBaseDamaged as error:
                    problems.append(f"document {key[:80]!r}: {error}")
                    if len(problems) >= _MOST_PROBLEMS:
                        return problems
                expected = row + 1
                digest ^= memory_id if lives else 0
        if not problems and (digest, expected) != (totals.digest, totals.rows):
            problems.append(f"{_DOCUMENTS} holds other memories than were written")
        return problems

    def _check_row(self, row: int, memory_id: int) -> None:
        bank = self.bank_of(row)
        record = bank.check(row)
        if record.memory_id != memory_id:
            raise KnowledgeBaseDamaged(f"record {row} of {bank.file.path.name} is of another memory")
        if google_crc32c.value(self.vectors.rows(row + 1)[row].tobytes()) != record.vector_crc32c:
            raise KnowledgeBaseDamaged(f"vector {row} of {_VECTORS} is not what was written")

    def finish_copy(self, removed: Sequence[StoredRow], totals: Totals) -> None:
        """Ends what compaction filled: it holds now what `totals` says and has a log of its own."""
        self.documents.commit([], removed, totals)
        self.commits.file.close()
        self.commits = CommitLog.create(self.folder / _COMMITS, totals)
        self.totals = totals
        sync_folder(self.folder)

    def retire(self, *, remove: bool) -> None:
        """The files are closed, and removed, when nobody reads them any more."""
        self._retired, self._removed = True, remove

    def __del__(self) -> None:
        if getattr(self, "_retired", False):
            self.close()
            if self._removed:
                shutil.rmtree(self.folder, ignore_errors=True)

    def seal(self) -> None:
        """Says in the log of commits what the files are, so that any changed bit is found when they are opened."""
        if self.commits.seal is None and self.documents.fold():
            self.commits.append(self.totals, crc_of(self.documents.path))

    def close(self) -> None:
        """Lets go of all files; what is still being read stays good."""
        for file in (self.commits.file, self.vectors.file, *(bank.file for bank in self.banks)):
            file.close()
        self.documents.close()


def _compare_with_seal(documents: Path, commits: CommitLog) -> None:
    """Raises KnowledgeBaseDamaged where files that were closed in order are not what they were."""
    if commits.is_cut:
        raise KnowledgeBaseDamaged(f"{commits.file.path.name} is shorter than it was written")
    if commits.seal is not None and documents.is_file() and crc_of(documents) != commits.seal:
        raise KnowledgeBaseDamaged(f"{documents.name} is not what was written")


def _bank_name(number: int) -> str:
    return f"bank-{number}.records"
