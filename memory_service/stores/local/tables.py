"""The tables of a knowledge base's SQLite file, what is packed into them, and the checksum over a document's rows.

References have rows whose numbers rise. Those of one document follow one another; the first is the document's number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from memory_service.stores.filters import Exists, Filter, In, Range, condition_sql

TABLES = """
CREATE TABLE state (
    record TEXT NOT NULL, checksum INTEGER NOT NULL, revision INTEGER NOT NULL, memories INTEGER NOT NULL,
    digest INTEGER NOT NULL
);
CREATE TABLE documents (
    first_row INTEGER PRIMARY KEY, row_count INTEGER NOT NULL, key TEXT NOT NULL UNIQUE, title TEXT NOT NULL,
    metadata TEXT NOT NULL, content_hash BLOB NOT NULL, stored_ms INTEGER NOT NULL, text_bytes INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX unwritten ON documents(key) WHERE payload_bytes = 0;
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
CREATE INDEX numbers ON metadata(name, number(value), document) WHERE number(value) IS NOT NULL;
"""
"""record: the knowledge base as JSON. `number` is `stores.filters.number`, a function of every connection."""
SHIFT = 1 << 63
"""SQLite's integers are signed: memory ids and their digest are kept less this, which keeps their order."""


class Document(NamedTuple):
    """A row of `documents`. metadata: as JSON; checksum: `checksum_of` it, and of its rows in `refs` and `vectors`."""

    first_row: int
    row_count: int
    key: str
    title: str
    metadata: str
    content_hash: bytes
    stored_ms: int
    text_bytes: int
    payload_bytes: int
    checksum: int = 0

    @property
    def rows(self) -> tuple[int, int]:
        """The first row of its references, and the one behind the last."""
        return self.first_row, self.first_row + self.row_count


def checksum_of(*rows: Iterable[Any]) -> int:
    """CRC-32C of the values of rows, each behind its length."""
    crc = 0
    for value in chain(*rows):
        raw = value if isinstance(value, bytes) else str(value).encode()
        crc = google_crc32c.extend(google_crc32c.extend(crc, len(raw).to_bytes(8, "little")), raw)
    return crc


class Words(NamedTuple):
    """Hashes of a reference's text, in order, uint32 [n], and of its document's title, distinct ones."""

    text: np.ndarray
    title: list[int]


def packed_words(title: Sequence[int], text: np.ndarray) -> bytes:
    """As kept in `refs`: how many of each, then these, uint32."""
    return np.concatenate([[len(title), len(text)], title, text]).astype("<u4").tobytes()


def unpacked_words(joined: bytes) -> Iterator[Words]:
    """Of several references, one behind the other."""
    numbers, start = np.frombuffer(joined, "<u4"), 0
    while start < len(numbers):
        text = start + 2 + int(numbers[start])
        end = text + int(numbers[start + 1])
        yield Words(numbers[text:end], numbers[start + 2 : text].tolist())
        start = end


def filter_sql(condition: Filter | None, parameters: list[Any]) -> str:
    """A filter (`stores.filters.matches`) as SQL over `documents`; its values are added to `parameters`."""

    def of_one(one: In | Exists | Range) -> str:
        parameters.append(one.name)
        where = ["name = ?"]
        if isinstance(one, In):
            parameters.extend(one.values)
            where.append(f"value IN ({','.join('?' * len(one.values))})")
        elif isinstance(one, Range):
            column = "value" if one.of_text else "number(value)"
            parameters.extend(one.limits.values())
            where += [f"{column} IS NOT NULL", *(f"{column} {sign} ?" for sign in one.limits)]
        return f"first_row IN (SELECT document FROM metadata WHERE {' AND '.join(where)})"

    return condition_sql(condition, of_one)
