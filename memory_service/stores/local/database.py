"""The SQLite file of one knowledge base: its connections, and the batches that change it.

A commit is on the disk when it returns.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import sqlite3
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import google_crc32c
import numpy as np

from memory_model.errors import Memory3Error
from memory_model.words import query_words, text_words
from memory_service.errors import KnowledgeBaseDamaged, StoreFull, StoreUnavailable
from memory_service.stores import NewDocument, Revision, digest
from memory_service.stores.filters import number
from memory_service.stores.local.snapshot import Snapshot
from memory_service.stores.local.tables import (
    OF_REFERENCES,
    SHIFT,
    TABLES,
    Document,
    packed_words,
    reference_checksum,
)

_PATIENCE_S = 30
_COMMITTED = struct.Struct("<QI")


class Database:
    """Reading is thread-safe, each reader has a connection of its own; writes have one caller at a time."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Raises KnowledgeBaseDamaged where the file is missing."""
        self.path = path
        self._mode = "rwc" if create else "rw"
        if not create and not path.is_file():
            raise KnowledgeBaseDamaged(f"{path.name} is missing")
        self._committed = path.with_name("committed")
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._closed = False
        self._writer = self._connect()
        if create:
            for pragma in ("page_size = 8192", "journal_mode = WAL"):
                self._writer.execute(f"PRAGMA {pragma}")
            state = (1, time.time_ns(), 0, -SHIFT, 0)
            self._writer.executescript(f"BEGIN; {TABLES} INSERT INTO state VALUES {state}; COMMIT;")
            self.note_commit(state[1])
            sync_folder(path.parent)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={self._mode}", uri=True, isolation_level=None,
            check_same_thread=False, timeout=_PATIENCE_S,
        )  # fmt: skip
        for pragma in ("synchronous = FULL", "cache_size = -16384", f"journal_size_limit = {64 << 20}"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    def close(self) -> None:
        """Closes the file; its journal goes into it."""
        self._closed = True
        self._writer.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()  # one that reads at this moment is closed when it has read

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """One state of the file."""
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self._connect()
        try:
            connection.execute("BEGIN")
            yield Snapshot(connection)
        finally:
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            if self._closed:
                connection.close()
            else:
                self._idle.put(connection)

    @contextlib.contextmanager
    def batch(self, first_row: int) -> Iterator[Batch]:
        """Changes that are there after a crash all together, or not at all. first_row: the least that may be used."""
        connection = self._writer
        connection.execute("BEGIN IMMEDIATE")
        try:
            batch = Batch(connection, first_row)
            yield batch
            batch.finish()
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    def note_commit(self, revision: int) -> None:
        """To be called once a batch is committed, before it is acknowledged.

        SQLite takes a journal that is lost or harmed for one that ended earlier: this file knows better.
        """
        descriptor = os.open(self._committed, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, _COMMITTED.pack(revision, _crc(revision)), 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def require_newest(self, revision: int) -> None:
        """Raises KnowledgeBaseDamaged where a batch was acknowledged that the file does not have."""
        with contextlib.suppress(OSError, struct.error):  # without it nothing is lost
            noted, crc = _COMMITTED.unpack(self._committed.read_bytes())
            if crc == _crc(noted) and noted > revision:
                raise KnowledgeBaseDamaged(
                    f"acknowledged documents are lost: {self.path.name} or its journal is older than they are"
                )


class Batch:
    """What one commit changes. Rows from `first_row` up to `next_row` are those of its new references."""

    def __init__(self, connection: sqlite3.Connection, first_row: int) -> None:
        self._run, self._run_many = connection.execute, connection.executemany
        self._snapshot = Snapshot(connection)
        before = self._snapshot.revision()
        # The clock's number, so that what a backup was made of is not taken for what was restored from it.
        self.revision = Revision(max(time.time_ns(), before.number + 1), before.memories, before.digest)
        (next_row,) = self._run("SELECT next_row FROM state").fetchone()
        self.first_row = self.next_row = max(next_row, first_row)

    def remove(self, document: Document) -> None:
        """A document with all that belongs to it."""
        ids = [memory_id for memory_id, _ in self._snapshot.texts(document)]
        for table in OF_REFERENCES:
            self._run(f"DELETE FROM {table} WHERE row >= ? AND row < ?", document.rows)
        self._run_many(
            "DELETE FROM metadata WHERE name = ? AND value = ? AND document = ?",
            [(*pair, document.id) for pair in document.metadata.items()],
        )
        self._run("DELETE FROM documents WHERE id = ?", (document.id,))
        self._count(-len(ids), ids)

    def add(self, new: NewDocument, vectors: np.ndarray) -> None:
        """A document whose key none has; vectors: of its references, float32 [n, dimension], of unit length."""
        (last_id,) = self._run("SELECT ifnull(max(seq), 0) FROM sqlite_sequence").fetchone()
        document = Document(
            last_id + 1, new.key, new.title, dict(new.metadata), new.content_hash, time.time_ns() // 1_000_000,
            self.next_row, len(new.references), sum(len(r.text.encode()) for r in new.references),
            sum(len(r.payload) for r in new.references),
        )  # fmt: skip
        title = query_words(new.title) if new.title else []
        rows: dict[str, list[tuple[object, ...]]] = {"documents": [document.row()]}
        rows["metadata"] = [(name, value, document.id, number(value)) for name, value in new.metadata.items()]
        rows |= {table: [] for table in OF_REFERENCES}
        for row, reference, vector in zip(range(*document.rows), new.references, vectors, strict=True):
            hashes, raw = packed_words(title, text_words(reference.text)), np.asarray(vector, "<f4").tobytes()
            head = (row, document.id, reference.memory_id - SHIFT, reference.crc32c, reference.text)
            rows["refs"].append((*head, reference_checksum(*head, hashes, raw)))
            rows["words"].append((row, hashes))
            rows["vectors"].append((row, raw))
            rows["payloads"].append((row, bytes(reference.payload)))
        for table, values in rows.items():
            if values:
                self._run_many(f"INSERT INTO {table} VALUES ({','.join('?' * len(values[0]))})", values)
        self.next_row += len(new.references)
        self._count(len(new.references), [reference.memory_id for reference in new.references])

    def _count(self, change: int, ids: Sequence[int]) -> None:
        before = self.revision
        self.revision = Revision(before.number, before.memories + change, before.digest ^ digest(ids))

    def finish(self) -> None:
        """Writes what the knowledge base holds after it."""
        after = self.revision
        state = (after.number, after.memories, after.digest - SHIFT, self.next_row)
        self._run("UPDATE state SET revision = ?, memories = ?, digest = ?, next_row = ?", state)


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Raises StoreFull, KnowledgeBaseDamaged or StoreUnavailable for what the disk or SQLite says while `doing`."""
    try:
        yield
    except Memory3Error:
        raise
    except (OSError, sqlite3.Error) as error:
        name, code = getattr(error, "sqlite_errorname", None) or "", getattr(error, "errno", None)
        if name.startswith("SQLITE_FULL") or code in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(
                f"the store's disk is full while {doing}: free space, nothing stored before is lost"
            ) from error
        harmed = code in (errno.EIO, errno.ENOENT, errno.EUCLEAN) or name.startswith("SQLITE_IOERR")
        if harmed or (isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.OperationalError)):
            raise KnowledgeBaseDamaged(
                f"the store's files are damaged while {doing} ({error}): restore a backup"
            ) from error
        raise StoreUnavailable(f"the store failed while {doing}: {error}") from error


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _crc(revision: int) -> int:
    return int(google_crc32c.value(revision.to_bytes(8, "little")))
