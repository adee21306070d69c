"""The tables of a knowledge base's SQLite file, and numbered migrations of files of older releases.

`PRAGMA user_version` is the number of the last migration that a file has. A released migration is never edited: a
change of the tables is the next number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import google_crc32c

from memory_service.errors import StoreUnavailable
from memory_service.stores.old_formats import UNWRITTEN_MASK

TABLES = """
CREATE TABLE state (
    record TEXT NOT NULL, checksum INTEGER NOT NULL, revision INTEGER NOT NULL, memories INTEGER NOT NULL,
    digest INTEGER NOT NULL
);
CREATE TABLE documents (
    first_row INTEGER PRIMARY KEY, row_count INTEGER NOT NULL, key TEXT NOT NULL UNIQUE, title TEXT NOT NULL,
    metadata TEXT NOT NULL, content_hash BLOB NOT NULL, stored_ms INTEGER NOT NULL, text_bytes INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL, checksum INTEGER NOT NULL, written INTEGER NOT NULL
);
CREATE INDEX unwritten ON documents(key) WHERE written = 0;
CREATE TABLE refs (
    row INTEGER PRIMARY KEY, document INTEGER NOT NULL, memory_id INTEGER NOT NULL,
    crc32c INTEGER NOT NULL, text TEXT NOT NULL, words BLOB NOT NULL
);
CREATE INDEX memory_ids ON refs(memory_id);
CREATE TABLE vectors (row INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE payloads (row INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE metadata (
    name TEXT NOT NULL, value TEXT NOT NULL, document INTEGER NOT NULL, PRIMARY KEY (name, value, document)
) WITHOUT ROWID;
CREATE TABLE uses (
    key TEXT NOT NULL, chunk INTEGER NOT NULL, reads INTEGER NOT NULL, PRIMARY KEY (key, chunk)
) WITHOUT ROWID;
CREATE INDEX numbers ON metadata(name, number(value), document) WHERE number(value) IS NOT NULL;
"""
"""record: the knowledge base as JSON. `number` is `stores.filters.number`, a function of every connection."""


def checksum_of(*rows: Iterable[Any]) -> int:
    """CRC-32C of the values of rows, each behind its length."""
    crc = 0
    for value in chain(*rows):
        raw = value if isinstance(value, bytes) else str(value).encode()
        crc = google_crc32c.extend(google_crc32c.extend(crc, len(raw).to_bytes(8, "little")), raw)
    return crc


def create(connection: sqlite3.Connection) -> None:
    """Makes the tables in an empty file."""
    connection.executescript(TABLES)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def migrate(connection: sqlite3.Connection) -> list[str]:
    """Brings a file of an older release up to date, whole or not at all; returns the names of what was applied.

    Raises StoreUnavailable for a file of a newer release.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > len(MIGRATIONS):
        raise StoreUnavailable(
            f"the knowledge base has format {found}, this release reads {len(MIGRATIONS)}: start the newer release"
        )
    missing = MIGRATIONS[found:]
    if missing:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for migration in missing:
                migration(connection)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise
    return [migration.__name__ for migration in missing]


def written_column(connection: sqlite3.Connection) -> None:
    """`written` becomes a column; documents without memories get the hash of their content."""
    run = connection.execute
    run("ALTER TABLE documents ADD COLUMN written INTEGER NOT NULL DEFAULT 1")
    for *document, checksum in run(
        "SELECT first_row, row_count, key, title, metadata, content_hash, stored_ms, text_bytes, payload_bytes,"
        " checksum FROM documents WHERE payload_bytes = 0"
    ).fetchall():
        first_row, row_count, content_hash = document[0], document[1], document[5]
        references = run(
            "SELECT r.row, r.document, r.memory_id, r.crc32c, r.text, r.words, v.vector FROM refs r"
            " JOIN vectors v ON v.row = r.row WHERE r.row >= ? AND r.row < ? ORDER BY r.row",
            (first_row, first_row + row_count),
        ).fetchall()
        if checksum_of(document, *references) != checksum:
            continue  # damaged: the check of the file finds it
        document[5] = bytes(a ^ b for a, b in zip(content_hash, UNWRITTEN_MASK, strict=True))
        values = document[5], checksum_of(document, *references), first_row
        run("UPDATE documents SET written = 0, content_hash = ?, checksum = ? WHERE first_row = ?", values)
    run("DROP INDEX unwritten")
    run("CREATE INDEX unwritten ON documents(key) WHERE written = 0")


def numbers_by_pattern(connection: sqlite3.Connection) -> None:
    """The index `numbers` follows `stores.filters.NUMBER`; before, digits of other scripts were numbers, too."""
    connection.execute("REINDEX numbers")


def uses_table(connection: sqlite3.Connection) -> None:
    """How often references are read is counted."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS uses (key TEXT NOT NULL, chunk INTEGER NOT NULL, reads INTEGER NOT NULL,"
        " PRIMARY KEY (key, chunk)) WITHOUT ROWID"
    )


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (written_column, numbers_by_pattern, uses_table)
"""Their numbers count from one."""
