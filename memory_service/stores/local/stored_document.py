"""A document as a local store keeps it: its columns, its rows in the banks, and the checksum over all of it."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c

from memory_service.stores import NewDocument

COLUMNS = (
    "id",
    "key",
    "title",
    "metadata",
    "content_hash",
    "stored_ms",
    "first_row",
    "row_count",
    "text_bytes",
    "payload_bytes",
)


@dataclass(frozen=True)
class StoredRow:
    """A document as a row of the table; its references are the rows from `first_row` on."""

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

    @property
    def rows(self) -> range:
        """Its rows in the banks."""
        return range(self.first_row, self.first_row + self.row_count)

    def checksum(self, references: Sequence[tuple[int, str]]) -> int:
        """CRC-32C over everything that is stored of it; references are (memory id, text)."""
        parts = [self.key, self.title, *(part for pair in sorted(self.metadata.items()) for part in pair)]
        parts += [part for memory_id, text in references for part in (f"{memory_id:016x}", text)]
        crc = google_crc32c.Checksum(self.content_hash)
        numbers = (self.stored_ms, self.first_row, self.row_count, self.text_bytes, self.payload_bytes)
        crc.update(struct.pack("<5q", *numbers))
        for part in parts:
            raw = part.encode()
            crc.update(len(raw).to_bytes(4, "little"))
            crc.update(raw)
        return int.from_bytes(crc.digest(), "big")


def to_stored(document: NewDocument, first_row: int, stored_ms: int) -> StoredRow:
    """A new document as it will be stored; `id` is given by the table."""
    return StoredRow(
        0, document.key, document.title, dict(document.metadata), document.content_hash, stored_ms, first_row,
        len(document.references), sum(len(r.text.encode()) for r in document.references),
        sum(len(r.payload) for r in document.references),
    )  # fmt: skip


def from_columns(row: Sequence[Any]) -> StoredRow:
    """A row of COLUMNS."""
    number, key, title, metadata, content_hash, *numbers = row
    return StoredRow(number, key, title, json.loads(metadata), bytes(content_hash), *numbers)


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
