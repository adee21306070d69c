"""Is the file of documents what was written? Its pages, every document's checksum, the metadata that filters use."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import google_crc32c

from memory_service.stores.local.documents import ID_SHIFT, Documents
from memory_service.stores.local.stored_document import COLUMNS, StoredRow, from_columns


def problems_of(documents: Documents) -> list[str]:
    """What is wrong with the file and with each document in it, a sentence each; reads everything."""
    name = documents.path.name
    try:
        with documents.snapshot() as connection:
            verdict = connection.execute("PRAGMA integrity_check(5)").fetchall()
            if verdict[0][0] != "ok":
                return [f"{name} is damaged: {'; '.join(str(row[0]) for row in verdict)[:300]}"]
            return _changed_documents(connection)
    except (sqlite3.Error, ValueError, TypeError, UnicodeError) as error:
        return [f"{name} cannot be read: {error}"]


def every_row(connection: sqlite3.Connection) -> Iterator[tuple[int, int, str, bool]]:
    """(row, memory id, key of its document, whether that lives) of every row, in order."""
    sql = "SELECT t.row, t.memory_id, d.key, d.died FROM texts t JOIN documents d ON d.id = t.document ORDER BY t.row"
    for row, memory_id, key, died in connection.execute(sql):
        yield row, memory_id + ID_SHIFT, key, died is None


def _changed_documents(connection: sqlite3.Connection) -> list[str]:
    """Compares every document with its checksum, and the metadata that filters use with the documents'."""
    wrong, pairs = [], 0
    sql = (
        f"SELECT {', '.join(f'd.{column}' for column in COLUMNS)}, d.checksum, d.died,"
        " t.row, t.memory_id, t.text FROM documents d LEFT JOIN texts t"
        " ON t.row >= d.first_row AND t.row < d.first_row + d.row_count AND t.document = d.id ORDER BY d.id, t.row"
    )
    for row, checksum, living, rows, references in _grouped(connection.execute(sql)):
        if rows != list(row.rows) or row.checksum(references) != checksum:
            wrong.append(f"document {row.key[:80]!r} is not what was written")
        if living:
            pairs ^= _pairs_digest((*pair, row.id) for pair in row.metadata.items())
    if pairs != _pairs_digest(connection.execute("SELECT name, value, document FROM pairs")):
        wrong.append("the metadata that filters use is not that of the documents")
    return wrong


def _pairs_digest(pairs: Iterable[Sequence[Any]]) -> int:
    digest = 0
    for name, value, document in pairs:
        digest ^= _hash_of(f"{document}\0{name}\0{value}")
    return digest


def _hash_of(text: str) -> int:
    """64 bits of a text that are the same in every process."""
    raw = text.encode()
    return google_crc32c.value(raw) << 32 | google_crc32c.value(raw[::-1])


def _grouped(
    rows: Iterable[Sequence[Any]],
) -> Iterator[tuple[StoredRow, int, bool, list[int], list[tuple[int, str]]]]:
    """(document, checksum, living, its rows, their memory ids and texts) of a joined, ordered result."""
    width = len(COLUMNS)
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        joined = list(group)
        first = joined[0]
        found = [row[width + 2 :] for row in joined if row[width + 2] is not None]
        numbers = [number for number, _, _ in found]
        references = [(memory_id + ID_SHIFT, text) for _, memory_id, text in found]
        yield from_columns(first[:width]), first[width], first[width + 1] is None, numbers, references
