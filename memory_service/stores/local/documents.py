"""The documents of one generation in sqlite: keys, titles, metadata, texts. Its commit is what makes a batch true.

A document owns consecutive rows of the banks. A document that is replaced or deleted stays, as dead, until the
knowledge base is compacted, so that a search under way still finds what it needs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores.bounded_cache import BoundedCache
from memory_service.stores.local.commits import Totals
from memory_service.stores.local.stored_document import COLUMNS, StoredRow, from_columns

DATA_VERSION = 1
_APPLICATION_ID = 0x4D334442  # "M3DB"

_TABLES = """
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, title TEXT NOT NULL, metadata TEXT NOT NULL,
    content_hash BLOB NOT NULL, stored_ms INTEGER NOT NULL, first_row INTEGER NOT NULL, row_count INTEGER NOT NULL,
    text_bytes INTEGER NOT NULL, payload_bytes INTEGER NOT NULL, checksum INTEGER NOT NULL,
    died INTEGER  -- the batch that replaced or deleted it, by its sequence number; NULL: it lives
);
CREATE UNIQUE INDEX living_key ON documents(key) WHERE died IS NULL;
CREATE INDEX dead ON documents(died) WHERE died IS NOT NULL;
CREATE TABLE texts (
    row INTEGER PRIMARY KEY, document INTEGER NOT NULL, memory_id INTEGER NOT NULL, text TEXT NOT NULL
);
CREATE INDEX memory_ids ON texts(memory_id);
CREATE TABLE pairs (
    name TEXT NOT NULL, value TEXT NOT NULL, document INTEGER NOT NULL, PRIMARY KEY (name, value, document)
) WITHOUT ROWID;
CREATE TABLE banks (number INTEGER PRIMARY KEY, first_row INTEGER NOT NULL, record_bytes INTEGER NOT NULL);
CREATE TABLE totals (
    one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, batch INTEGER NOT NULL,
    row_count INTEGER NOT NULL, documents INTEGER NOT NULL, memories INTEGER NOT NULL, digest INTEGER NOT NULL
);
"""
# sqlite's integers are signed: unsigned ones are kept shifted, which keeps their order.
ID_SHIFT = 1 << 63
_CACHE_KIB = 16 * 1024  # pages that each connection keeps
_REMEMBERED_BYTES = 16 << 20
_COLUMNS = ", ".join(COLUMNS)


@dataclass(frozen=True)
class Hit:
    """What a search says of a row."""

    memory_id: int
    key: str
    title: str
    chunk: int
    text: str | None


class Documents:
    """The table. Reading is thread-safe, each reader has a connection of its own; there is one writer."""

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        self.path = path
        self._writable = writable
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._all: list[sqlite3.Connection] = []
        self._writer = self._connect()
        self._number = next(_numbers_of_tables)

    @classmethod
    def create(cls, path: Path, totals: Totals) -> Documents:
        """A new, empty table."""
        documents = cls(path)
        connection = documents._writer
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {DATA_VERSION}")
        connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
        connection.execute("INSERT INTO totals VALUES (1, ?, ?, ?, ?, ?, ?)", _numbers(totals))
        return documents

    @classmethod
    def open(cls, path: Path, *, writable: bool = True) -> Documents:
        """One that is there; raises KnowledgeBaseDamaged when it is missing or of another format."""
        if not path.is_file():
            raise KnowledgeBaseDamaged(f"{path.name} is missing")
        documents = cls(path, writable=writable)
        try:
            found = documents._writer.execute("PRAGMA user_version").fetchone()[0]
            if found != DATA_VERSION:
                raise KnowledgeBaseDamaged(
                    f"{path.name} has data format {found}, this version reads {DATA_VERSION}"
                )
        except BaseException:
            documents.close()
            raise
        return documents

    def _connect(self) -> sqlite3.Connection:
        mode = "rwc" if self._writable else "ro" if os.access(self.path.parent, os.W_OK) else "ro&immutable=1"
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False,
            timeout=30,
        )  # fmt: skip
        if self._writable:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._all.append(connection)
        return connection

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self._connect()
        try:
            yield connection
        finally:
            self._idle.put(connection)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection whose statements see one state of the file."""
        with self._reader() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def _rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._reader() as connection:
            return connection.execute(sql, parameters).fetchall()

    # Reading

    def totals(self) -> Totals:
        """What the newest batch left."""
        with self._reader() as connection:
            return self.totals_in(connection)

    def totals_in(self, connection: sqlite3.Connection) -> Totals:
        """As `totals`, as one connection sees it."""
        rows = connection.execute(
            "SELECT sequence, batch, row_count, documents, memories, digest FROM totals"
        ).fetchall()
        if len(rows) != 1:
            raise KnowledgeBaseDamaged(f"{self.path.name} does not say what it holds")
        sequence, batch, row_count, documents, memories, digest = rows[0]
        return Totals(sequence, batch, row_count, documents, memories, digest + ID_SHIFT)

    def banks(self) -> list[tuple[int, int, int]]:
        """(number, first row, record bytes) of every bank."""
        return [
            tuple(row)
            for row in self._rows("SELECT number, first_row, record_bytes FROM banks ORDER BY number")
        ]

    def hits(self, rows: Sequence[int], *, with_text: bool) -> dict[int, Hit]:
        """What is known of these rows, living or not. Without texts those met lately are remembered."""
        if with_text:
            return self._read_hits(rows, with_text=True)
        known = self.remembered(rows)
        if len(known) < len(rows):
            fresh = self._read_hits([row for row in rows if row not in known], with_text=False)
            _remembered.put_many(self._number, fresh)
            known.update(fresh)
        return known

    def remembered(self, rows: Iterable[int]) -> dict[int, Hit]:
        """Those of these rows that were met lately, without texts."""
        return _remembered.get_many(self._number, rows)

    def _read_hits(self, rows: Sequence[int], *, with_text: bool) -> dict[int, Hit]:
        marks = ",".join("?" * len(rows))
        found = self._rows(
            f"SELECT t.row, t.memory_id, d.key, d.title, t.row - d.first_row, {'t.text' if with_text else 'NULL'}"
            f" FROM texts t JOIN documents d ON d.id = t.document WHERE t.row IN ({marks})",
            rows,
        )
        return {row: Hit(memory_id + ID_SHIFT, *rest) for row, memory_id, *rest in found}

    def references(self, rows: range) -> list[tuple[int, str]]:
        """(memory id, text) of consecutive rows."""
        found = self._rows(
            "SELECT memory_id, text FROM texts WHERE row >= ? AND row < ? ORDER BY row",
            (rows.start, rows.stop),
        )
        return [(memory_id + ID_SHIFT, text) for memory_id, text in found]

    def rows_after(self, after_id: int | None, count: int) -> list[int]:
        """Living rows with the smallest memory ids above `after_id`, in ascending order of the ids."""
        first = 0 if after_id is None else after_id + 1
        if first >= 2 * ID_SHIFT:
            return []
        found = self._rows(
            "SELECT t.row FROM texts t JOIN documents d ON d.id = t.document"
            " WHERE t.memory_id >= ? AND d.died IS NULL ORDER BY t.memory_id LIMIT ?",
            (first - ID_SHIFT, count),
        )
        return [row[0] for row in found]

    def living(self, keys: Sequence[str]) -> dict[str, StoredRow]:
        """The documents of these keys; absent ones are left out."""
        found: dict[str, StoredRow] = {}
        for start in range(0, len(keys), 500):
            part = keys[start : start + 500]
            marks = ",".join("?" * len(part))
            rows = self._rows(
                f"SELECT {_COLUMNS} FROM documents WHERE died IS NULL AND key IN ({marks})", part
            )
            found.update((row.key, row) for row in map(from_columns, rows))
        return found

    def living_after(self, first_row: int, limit: int) -> list[StoredRow]:
        """Up to `limit` living documents whose rows begin at `first_row` or behind it, in the order of rows.

        Rows and ids rise together, so the key of the table gives the order without an index of rows.
        """
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM documents WHERE died IS NULL AND id >="
            " ifnull((SELECT document FROM texts WHERE row >= ? ORDER BY row LIMIT 1), 9223372036854775807)"
            " ORDER BY id LIMIT ?",
            (first_row, limit),
        )
        return [row for row in map(from_columns, rows) if row.first_row >= first_row]

    def dead(self, after: int = -1) -> list[StoredRow]:
        """Documents that were replaced or deleted, by batches whose sequence numbers are above `after`."""
        sql = f"SELECT {_COLUMNS} FROM documents WHERE died > ?"
        return list(map(from_columns, self._rows(sql, (after,))))

    def dead_rows(self, after: int, until: int) -> list[range]:
        """Rows of the documents that died in batches `after` < sequence number <= `until`."""
        rows = self._rows(
            "SELECT first_row, row_count FROM documents WHERE died > ? AND died <= ?", (after, until)
        )
        return [range(first, first + count) for first, count in rows]

    def rows_with(self, metadata: Mapping[str, str]) -> list[range]:
        """Rows of the living documents whose metadata has all of these values, in order."""
        condition = " AND ".join(
            "id IN (SELECT document FROM pairs WHERE name = ? AND value = ?)" for _ in metadata
        )
        values = [part for pair in sorted(metadata.items()) for part in pair]
        rows = self._rows(
            f"SELECT first_row, row_count FROM documents WHERE died IS NULL AND {condition} ORDER BY first_row",
            values,
        )
        return [range(first, first + count) for first, count in rows]

    def sums(self) -> tuple[int, int, int, int]:
        """(documents, references, payload bytes, text bytes) of the living."""
        documents, references, payloads, texts = self._rows(
            "SELECT count(*), total(row_count), total(payload_bytes), total(text_bytes)"
            " FROM documents WHERE died IS NULL"
        )[0]
        return int(documents), int(references), int(payloads), int(texts)

    def keys(self, prefix: str, after_key: str, count: int) -> list[str]:
        """Keys of living documents that begin with `prefix`, after one, in the order of their bytes."""
        rows = self._rows(
            "SELECT key FROM documents WHERE died IS NULL AND key > ? AND key >= ? AND substr(key, 1, ?) = ?"
            " ORDER BY key LIMIT ?",
            [after_key, prefix, len(prefix), prefix, count],
        )
        return [row[0] for row in rows]

    def unwritten(self, count: int) -> list[str]:
        """Keys of at most `count` living documents without payloads."""
        rows = self._rows(
            "SELECT key FROM documents WHERE died IS NULL AND payload_bytes = 0 LIMIT ?", [count]
        )
        return [row[0] for row in rows]

    def unwritten_count(self) -> int:
        """Living documents without payloads."""
        rows = self._rows("SELECT count(*) FROM documents WHERE died IS NULL AND payload_bytes = 0")
        return int(rows[0][0])

    # Writing

    def commit(
        self, new: Iterable[tuple[StoredRow, Sequence[tuple[int, str]]]], removed: Sequence[StoredRow], totals: Totals,
        banks: Sequence[tuple[int, int, int]] = (),
    ) -> None:  # fmt: skip
        """One batch: new documents with the ids and texts of their rows, those that go, new banks, the totals after it.

        All of it is there after a crash, or nothing.
        """
        connection = self._writer
        connection.execute("BEGIN IMMEDIATE")
        try:
            for old in removed:
                connection.execute("UPDATE documents SET died = ? WHERE id = ?", (totals.sequence, old.id))
                connection.executemany(
                    "DELETE FROM pairs WHERE name = ? AND value = ? AND document = ?",
                    [(*pair, old.id) for pair in old.metadata.items()],
                )
            for document, references in new:
                self._insert(connection, document, references)
            connection.executemany("INSERT INTO banks VALUES (?, ?, ?)", banks)
            connection.execute(
                "UPDATE totals SET sequence = ?, batch = ?, row_count = ?, documents = ?, memories = ?, digest = ?",
                _numbers(totals),
            )
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    @staticmethod
    def _insert(
        connection: sqlite3.Connection, document: StoredRow, references: Sequence[tuple[int, str]]
    ) -> None:
        metadata = json.dumps(dict(document.metadata), ensure_ascii=False, sort_keys=True)
        cursor = connection.execute(
            "INSERT INTO documents (key, title, metadata, content_hash, stored_ms, first_row, row_count, text_bytes,"
            " payload_bytes, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                document.key, document.title, metadata, document.content_hash, document.stored_ms,
                document.first_row, document.row_count, document.text_bytes, document.payload_bytes,
                document.checksum(references),
            ),
        )  # fmt: skip
        number = cursor.lastrowid
        connection.executemany(
            "INSERT INTO texts VALUES (?, ?, ?, ?)",
            [
                (row, number, memory_id - ID_SHIFT, text)
                for row, (memory_id, text) in zip(document.rows, references, strict=True)
            ],
        )
        connection.executemany(
            "INSERT INTO pairs VALUES (?, ?, ?)", [(*pair, number) for pair in document.metadata.items()]
        )

    def fold(self) -> bool:
        """Writes the journal into the file; whether all of it is there now, as it is unless another process reads."""
        busy, _, _ = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def close(self) -> None:
        """Closes every connection; the journal goes into the file."""
        while self._all:
            with contextlib.suppress(sqlite3.Error):
                self._all.pop().close()


def has_journal(path: Path) -> bool:
    """Whether batches are not in the file itself but beside it, as after a crash."""
    journal = path.with_name(f"{path.name}-wal")
    return journal.is_file() and journal.stat().st_size > 0


def _size(hit: Hit) -> int:
    return 300 + len(hit.key) + len(hit.title)


# One for all knowledge bases of the process: there may be thousands. A row once committed names the same reference as
# long as its table lives, and no two tables share a number; what was of a closed one makes room as it gets old.
_remembered: BoundedCache[Hit] = BoundedCache("rows", _REMEMBERED_BYTES, _size)
_numbers_of_tables = itertools.count()


def _numbers(totals: Totals) -> tuple[int, ...]:
    *numbers, digest = astuple(totals)
    return (*numbers, digest - ID_SHIFT)
