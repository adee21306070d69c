"""The log of finished batches: evidence, apart from the documents' own file, of what was acknowledged.

    record   sequence u64 | batch u64 | rows u64 | documents u64 | memories u64 | digest u64
             | 1 for a seal u32 | CRC-32C of the documents' file in a seal u32 | CRC-32C of these, filled up to 64 bytes

A record is written after the batch was committed and before it is acknowledged. If the documents' file is older than
the last record, acknowledged documents are lost (a journal of sqlite that is gone or damaged looks like that), and
nobody else would notice. A seal is written when the files are closed in order, and says what all of the documents'
file was; the first batch after it begins with a record that is none.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from pathlib import Path

import google_crc32c

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores.local.disk import MappedFile

_RECORD = struct.Struct("<6QII")
_RECORD_BYTES = 64


@dataclass(frozen=True)
class Totals:
    """What a knowledge base holds after a batch.

    sequence: batches so far; batch: a number that is never used again, also not by another knowledge base of the same
    name; rows: records in the banks, living or not; digest: XOR of the living memories' ids.
    """

    sequence: int = 0
    batch: int = 0
    rows: int = 0
    documents: int = 0
    memories: int = 0
    digest: int = 0


class CommitLog:
    """One knowledge base's log. Not thread-safe."""

    def __init__(self, file: MappedFile, count: int, last: Totals, seal: int | None = None) -> None:
        """seal: CRC-32C of the documents' file when they were closed in order, if nothing was written since."""
        self.file = file
        self.last = last
        self.seal = seal
        self._count = count

    @classmethod
    def create(cls, path: Path, totals: Totals) -> CommitLog:
        """A new one with a first record."""
        log = cls(MappedFile(path, create=True), 0, totals)
        log.append(totals)
        return log

    @classmethod
    def open(cls, path: Path, *, writable: bool = True) -> CommitLog:
        """Reads the last record; a part of one at the end was never acknowledged. Raises KnowledgeBaseDamaged."""
        if not path.is_file():
            raise KnowledgeBaseDamaged(f"{path.name} is missing")
        file = MappedFile(path, writable=writable)
        try:
            count = file.size_bytes // _RECORD_BYTES
            records = [cls._read(file, number) for number in range(count)]
            # A power failure may leave the place of the last record, and zeros in it.
            if records and records[-1] is None and not any(file.view(1)[(count - 1) * _RECORD_BYTES :]):
                records.pop()
            known = [record for record in records if record is not None]
            if not known or len(known) != len(records):
                raise KnowledgeBaseDamaged(f"{path.name} is not what was written")
        except BaseException:
            file.close()
            raise
        return cls(file, len(known), *known[-1])

    @property
    def is_cut(self) -> bool:
        """Whether it ends with a part of a record, as after a crash."""
        return self.file.size_bytes != self._count * _RECORD_BYTES

    def has_more(self) -> bool:
        """Whether another process appended a record."""
        return self.file.size_bytes >= (self._count + 1) * _RECORD_BYTES

    def follow(self) -> bool:
        """Takes notice of what another process appended; returns whether there was something."""
        count = self.file.size_bytes // _RECORD_BYTES
        while count > self._count:
            if record := self._read(self.file, count - 1):
                self._count, (self.last, self.seal) = count, record
                return True
            count -= 1  # that one is being written
        return False

    @staticmethod
    def _read(file: MappedFile, number: int) -> tuple[Totals, int | None] | None:
        start = number * _RECORD_BYTES
        raw = bytes(file.view(start + _RECORD_BYTES)[start : start + _RECORD_BYTES])
        *totals, sealed, seal = _RECORD.unpack_from(raw)
        if raw != _packed(Totals(*totals), seal if sealed else None):
            return None
        return Totals(*totals), seal if sealed else None

    def append(self, totals: Totals, seal: int | None = None) -> None:
        """Writes a record; durable when it returns."""
        self.file.write([_packed(totals, seal)], self._count * _RECORD_BYTES)
        self.file.sync()
        self._count += 1
        self.last, self.seal = totals, seal


def _packed(totals: Totals, seal: int | None) -> bytes:
    raw = _RECORD.pack(*astuple(totals), seal is not None, seal or 0)
    return (raw + google_crc32c.value(raw).to_bytes(4, "little")).ljust(_RECORD_BYTES, b"\0")
