"""The tables of a knowledge base's SQLite file, what a row of them holds, and the checksums over it.

References have rows whose numbers rise and are never used twice; those of one document follow one another.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from memory_service.stores.filters import And, Exists, Filter, In, Not, Or, Range

TABLES = """
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, memories INTEGER NOT NULL,
    digest INTEGER NOT NULL, next_row INTEGER NOT NULL
);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, title TEXT NOT NULL, metadata TEXT NOT NULL,
    content_hash BLOB NOT NULL, stored_ms INTEGER NOT NULL, first_row INTEGER NOT NULL, row_count INTEGER NOT NULL,
    text_bytes INTEGER NOT NULL, payload_bytes INTEGER NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX unwritten ON documents(key) WHERE payload_bytes = 0;
CREATE TABLE refs (
    row INTEGER PRIMARY KEY, document INTEGER NOT NULL, memory_id INTEGER NOT NULL, crc32c INTEGER NOT NULL,
    text TEXT NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX memory_ids ON refs(memory_id);
CREATE TABLE words (row INTEGER PRIMARY KEY, hashes BLOB NOT NULL);
CREATE TABLE vectors (row INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE payloads (row INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE metadata (
    name TEXT NOT NULL, value TEXT NOT NULL, document INTEGER NOT NULL, number REAL,
    PRIMARY KEY (name, value, document)
) WITHOUT ROWID;
CREATE INDEX numbers ON metadata(name, number, document) WHERE number IS NOT NULL;
"""
OF_REFERENCES = ("refs", "words", "vectors", "payloads")
"""Tables with one row for each reference."""
SHIFT = 1 << 63
"""SQLite's integers are signed: memory ids and their digest are kept less this, which keeps their order."""


class Document(NamedTuple):
    """A row of `documents`, less its checksum."""

    id: int
    key: str
    title: str
    metadata: Mapping[str, str]
    content_hash: bytes
    stored_ms: int
    first_row: int
    row_count: int
    text_bytes: int
    payload_bytes: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> Document:
        """From the columns of `documents` in order."""
        return cls._make((*row[:3], json.loads(row[3]), *row[4:10]))

    def row(self) -> tuple[Any, ...]:
        """The columns of `documents` in order."""
        metadata = json.dumps(self.metadata, ensure_ascii=False, sort_keys=True)
        numbers = struct.pack("<6q", self.id, *self[5:])
        checksum = _crc(self.key, self.title, metadata, self.content_hash, numbers)
        return (*self[:3], metadata, *self[4:], checksum)

    @property
    def rows(self) -> tuple[int, int]:
        """The first row of its references, and the one behind the last."""
        return self.first_row, self.first_row + self.row_count


class Reference(NamedTuple):
    """A reference as stored. payload: None where it was not to be read."""

    memory_id: int
    crc32c: int
    key: str
    title: str
    chunk: int
    metadata: str
    text: str
    payload: bytes | None


class Words(NamedTuple):
    """Hashes of a reference's text, in order, uint32 [n], and of its document's title, distinct ones."""

    text: np.ndarray
    title: list[int]


def packed_words(title: Sequence[int], text: np.ndarray) -> bytes:
    """As kept in `words`: how many of each, then these, uint32."""
    return np.concatenate([[len(title), len(text)], title, text]).astype("<u4").tobytes()


def unpacked_words(joined: bytes) -> Iterator[Words]:
    """Of rows of `words` one behind the other."""
    numbers, start = np.frombuffer(joined, "<u4"), 0
    while start < len(numbers):
        text = start + 2 + int(numbers[start])
        end = text + int(numbers[start + 1])
        yield Words(numbers[text:end], numbers[start + 2 : text].tolist())
        start = end


def reference_checksum(
    row: int, document: int, shifted_id: int, crc: int, text: str, hashes: bytes, vector: bytes
) -> int:
    """CRC-32C over what the tables have of a reference, less its payload, which has one of its own."""
    return _crc(struct.pack("<4q", row, document, shifted_id, crc), text, hashes, vector)


def metadata_checksum(rows: Iterator[tuple[str, str, float | None, int]]) -> int:
    """A sum over rows of `metadata` (name, value, number, document): equal sets have equal ones."""
    return sum(_crc(*map(str, row)) for row in rows)


def _crc(*parts: str | bytes) -> int:
    """CRC-32C of all parts, each behind its length."""
    crc = 0
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        crc = google_crc32c.extend(google_crc32c.extend(crc, len(raw).to_bytes(8, "little")), raw)
    return crc


def condition_sql(condition: Filter | None, parameters: list[Any]) -> str:
    """A filter (`stores.filters.matches`) as SQL over `documents`; its values are added to `parameters`."""
    match condition:
        case None:
            return "1"
        case And(parts):
            return f"({' AND '.join(condition_sql(part, parameters) for part in parts) or '1'})"
        case Or(parts):
            return f"({' OR '.join(condition_sql(part, parameters) for part in parts) or '0'})"
        case Not(part):
            return f"NOT {condition_sql(part, parameters)}"
        case In(name, values):
            parameters += [name, *values]
            where = f"value IN ({','.join('?' * len(values))})"
        case Exists(name):
            parameters.append(name)
            where = "1"
        case Range(name) as bounds:
            limits = {">=": bounds.at_least, ">": bounds.above, "<=": bounds.at_most, "<": bounds.below}
            given = {sign: limit for sign, limit in limits.items() if limit is not None}
            column = "value" if any(isinstance(limit, str) for limit in given.values()) else "number"
            parameters += [name, *given.values()]
            where = " AND ".join([f"{column} IS NOT NULL", *(f"{column} {sign} ?" for sign in given)])
    return f"id IN (SELECT document FROM metadata WHERE name = ? AND {where})"
