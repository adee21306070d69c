"""The SQLite file of one knowledge base: made, opened and migrated; a connection for each reader and one to write.

A commit is on the disk when it returns. What a transaction can do is in `rows`.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from memory_service.errors import KnowledgeBaseDamaged, StoreUnavailable
from memory_service.stores.filters import number
from memory_service.stores.local.disk import is_damage
from memory_service.stores.local.rows import Transaction
from memory_service.stores.local.tables import checksum_of, create, migrate
from memory_service.stores.store import KnowledgeBase

_JOURNAL_BYTES = 64 << 20
_WAIT_FOR_READERS_MS = 250
_PRAGMAS = (
    "page_size = 8192",
    "journal_mode = WAL",
    "synchronous = FULL",
    "cache_size = -16384",
    f"journal_size_limit = {_JOURNAL_BYTES}",
)
_PATIENCE_S = 30
_STATEMENTS = 32  # compiled ones that a connection keeps: a filter is one of its own, of up to half a megabyte
_READ_BYTES = 1 << 20


class Database:
    """Reading is thread-safe, each reader has a connection of its own; writes have one caller at a time."""

    def __init__(self, path: Path, new: KnowledgeBase | None = None) -> None:
        """Opens a file, which is migrated, or makes it for a `new` knowledge base.

        Raises KnowledgeBaseDamaged where the file is missing, StoreUnavailable for one of a newer release.
        """
        self._path = path
        self._noted = path.with_name("committed")
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._closed = False
        self._journal_to_come = _JOURNAL_BYTES
        self.migrated: list[str] = []
        if new is not None:
            path.touch()
        elif not path.exists():
            raise KnowledgeBaseDamaged(f"{path.name} is missing")
        writer = self._connect()
        self._writer: sqlite3.Connection | None = writer
        if new is None:
            try:
                self.migrated = migrate(writer)
            except BaseException:
                writer.close()
                raise
        else:
            create(writer)
            Transaction(writer).begin(new)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=_PATIENCE_S,
            cached_statements=_STATEMENTS,
        )
        connection.create_function("number", 1, number, deterministic=True)
        try:
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Closes the file; its journal goes into it."""
        self._closed = True
        if self._writer is not None:
            self._writer.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()  # one that reads at this moment is closed when it has read

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """One state of the file."""
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self._connect()
        try:
            connection.execute("BEGIN")
            yield Transaction(connection)
            connection.rollback()
        except BaseException as error:
            connection.close()  # what failed once is not used again: the next reader opens the file anew
            self._require_damage(error)
            raise
        if self._closed:
            connection.close()
        else:
            self._idle.put(connection)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Changes that are there after a crash all together, or not at all."""
        if self._writer is None:
            self._writer = self._connect()
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            yield Transaction(self._writer)
            self._writer.execute("COMMIT")
        except BaseException as error:
            self._writer.close()  # which rolls back
            self._writer = None
            self._require_damage(error)
            raise

    def shorten_journal(self) -> None:
        """To be called after commits: moves a long journal into the file, once readers of older states have ended.

        SQLite does so by itself only at a moment without such readers, which may never come: the journal would grow
        until the disk is full. Where one reads for long, as a backup does, it is tried again after as much again.
        """
        journal = self._path.with_name(f"{self._path.name}-wal")
        with contextlib.suppress(OSError, sqlite3.Error):  # what is committed stays so
            if self._writer is None or journal.stat().st_size < self._journal_to_come:
                return
            self._writer.execute(f"PRAGMA busy_timeout = {_WAIT_FOR_READERS_MS}")
            try:
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._writer.execute(f"PRAGMA busy_timeout = {1000 * _PATIENCE_S}")
            self._journal_to_come = journal.stat().st_size + _JOURNAL_BYTES

    def _require_damage(self, error: BaseException) -> None:
        """Raises StoreUnavailable for what SQLite calls damage where the file is whole: so it reports failed reads."""
        if not (isinstance(error, sqlite3.DatabaseError) and is_damage(error)) or "decode" in str(error):
            return  # the latter was read well and has another content
        with self._path.open("rb") as file:  # OSError: it cannot be read at the moment
            while file.read(_READ_BYTES):
                pass
        with contextlib.suppress(sqlite3.Error), contextlib.closing(self._connect()) as connection:
            if connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",):
                raise StoreUnavailable(f"the disk failed ({error}); a check finds {self._path.name} whole") from error

    def note_commit(self, revision: int) -> None:
        """To be called once a batch is committed, before it is acknowledged.

        SQLite takes a journal that is lost or harmed for one that ended earlier: this file knows better.
        """
        with contextlib.suppress(OSError):  # a full disk
            self._noted.write_text(f"{revision} {checksum_of([revision])}")

    def require_newest(self, revision: int) -> None:
        """Raises KnowledgeBaseDamaged where a batch was acknowledged that the file does not have."""
        with contextlib.suppress(OSError, ValueError):  # without it nothing is lost
            noted, checksum = map(int, self._noted.read_bytes().split())
            if checksum == checksum_of([noted]) and noted > revision:
                raise KnowledgeBaseDamaged(
                    f"acknowledged documents are lost: {self._path.name} or its journal is older"
                )
