r"""The bank: payloads as records of one size, so that a row's number says where its payload lies.

    file     header | record 0 | record 1 | …
    header   b"M3BANK\0\1" | record bytes u32 | first row u64 | CRC-32C of these, filled up to 64 bytes
    record   memory id u64 | payload bytes u32 | CRC-32C of the payload | CRC-32C of the vector | CRC-32C of these
             | payload | nothing up to the record's size

Little-endian. A payload shorter than the record leaves a hole, which takes no place on the disk where it covers
whole blocks. Payloads of a model have one length but for short references; a longer one than ever before opens
the next bank, of larger records. Records are never changed: what is deleted is only forgotten.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores.local.disk import MappedFile

_MAGIC = b"M3BANK\0\1"
_FILE_HEADER = struct.Struct("<8sIQ")
_HEADER_BYTES = 64
_RECORD_HEADER = struct.Struct("<QIII")
_CRC = struct.Struct("<I")
_RECORD = struct.Struct(_RECORD_HEADER.format + "I")  # the header with its checksum
_ALIGNMENT = 64
_ROWS_MORE = 4096


class Record(NamedTuple):
    """One memory as the bank holds it; `payload` lies in the mapped file."""

    memory_id: int
    payload: memoryview
    payload_crc32c: int
    vector_crc32c: int


def record_bytes_for(payload_bytes: int) -> int:
    """Size of the records that take payloads of this length."""
    needed = _RECORD.size + payload_bytes
    return -(-needed // _ALIGNMENT) * _ALIGNMENT


def _file_header(first_row: int, record_bytes: int) -> bytes:
    head = _FILE_HEADER.pack(_MAGIC, record_bytes, first_row)
    return (head + _CRC.pack(google_crc32c.value(head))).ljust(_HEADER_BYTES, b"\0")


class Bank:
    """Rows from `first_row` on. Reading is thread-safe; there is one writer."""

    def __init__(self, file: MappedFile, first_row: int, record_bytes: int) -> None:
        self.file = file
        self.first_row = first_row
        self.record_bytes = record_bytes
        self._checked = bytearray()  # 1 for rows whose payload was compared with its checksum since the start

    @classmethod
    def create(cls, path: Path, first_row: int, record_bytes: int) -> Bank:
        """A new, empty one in the place of whatever lies there."""
        file = MappedFile(path, create=True)
        file.write([_file_header(first_row, record_bytes)], 0)
        file.sync()
        return cls(file, first_row, record_bytes)

    @classmethod
    def open(cls, path: Path, first_row: int, record_bytes: int, *, writable: bool = True) -> Bank:
        """One that is there; raises KnowledgeBaseDamaged when its header is not that of these values."""
        if not path.is_file():
            raise KnowledgeBaseDamaged(f"{path.name} is missing")
        file = MappedFile(path, writable=writable)
        try:
            if bytes(file.view(_HEADER_BYTES)[:_HEADER_BYTES]) != _file_header(first_row, record_bytes):
                raise KnowledgeBaseDamaged(f"{path.name} does not begin as it was written")
        except BaseException:
            file.close()
            raise
        return cls(file, first_row, record_bytes)

    def takes(self, payload_bytes: int) -> bool:
        """Whether a payload of this length fits into a record."""
        return record_bytes_for(payload_bytes) <= self.record_bytes

    def size_for(self, rows_end: int) -> int:
        """Bytes of a file that holds rows up to `rows_end`, exclusive."""
        return _HEADER_BYTES + (rows_end - self.first_row) * self.record_bytes

    def write(self, row: int, memory_ids: Sequence[int], payloads: Sequence[bytes | memoryview],
              payload_crcs: Sequence[int], vector_crcs: Sequence[int]) -> None:  # fmt: skip
        """Writes rows from `row` on; they are durable after `sync`."""
        for place, (memory_id, payload) in enumerate(zip(memory_ids, payloads, strict=True)):
            head = _RECORD_HEADER.pack(memory_id, len(payload), payload_crcs[place], vector_crcs[place])
            parts = [head, _CRC.pack(google_crc32c.value(head)), payload]
            self.file.write(parts, self.size_for(row + place))
        self.file.extend_to(self.size_for(row + len(memory_ids)))

    def read(self, row: int) -> Record:
        """The record of a row, its header checked; raises KnowledgeBaseDamaged.

        Headers are compared with their checksums until the whole record was, by this process.
        """
        return self.read_in(self.file.view(self.size_for(row + 1)), row)

    def read_in(self, view: memoryview, row: int) -> Record:
        """As `read`, in a view of the file that is known to reach behind the row: its length is not asked again."""
        start = self.size_for(row)
        memory_id, length, payload_crc, vector_crc, crc = _RECORD.unpack_from(view, start)
        payload = start + _RECORD.size
        if not self.was_checked(row):
            head = bytes(view[start : start + _RECORD_HEADER.size])
            if google_crc32c.value(head) != crc or payload + length > start + self.record_bytes:
                raise KnowledgeBaseDamaged(f"record {row} of {self.file.path.name} is not what was written")
        return Record(memory_id, view[payload : payload + length], payload_crc, vector_crc)

    def slice_in(self, view: memoryview, row: int) -> tuple[int, memoryview, int, bool]:
        """(memory id, payload, its CRC-32C, whether it was compared with that); raises as `read_in`.

        The way of every hit of every search: less than half of what `read_in` and `payload` cost.
        """
        place = row - self.first_row
        if place >= len(self._checked) or not self._checked[place]:
            record = self.read_in(view, row)
            return record.memory_id, record.payload, record.payload_crc32c, False
        start = _HEADER_BYTES + place * self.record_bytes
        memory_id, length, crc32c, _, _ = _RECORD.unpack_from(view, start)
        start += _RECORD.size
        return memory_id, view[start : start + length], crc32c, True

    def was_checked(self, row: int) -> bool:
        """Whether this process compared the whole record with its checksums."""
        place = row - self.first_row
        return place < len(self._checked) and self._checked[place] == 1

    def check(self, row: int) -> Record:
        """Reads a record and compares all of it with its checksums, again; raises KnowledgeBaseDamaged."""
        if self.was_checked(row):
            self._checked[row - self.first_row] = 0
        record = self.read(row)
        self.payload(row, record)
        end = self.size_for(row + 1)
        filled = self.size_for(row) + _RECORD.size + len(record.payload)
        if bytes(self.file.view(end)[filled:end]) != bytes(end - filled):
            raise KnowledgeBaseDamaged(f"record {row} of {self.file.path.name} is not what was written")
        return record

    def payload(self, row: int, record: Record) -> memoryview:
        """The payload of a record that was read, in the mapped file; raises KnowledgeBaseDamaged.

        It is compared with its CRC-32C when this process reads it for the first time.
        """
        if not self.was_checked(row):
            place = row - self.first_row
            if place >= len(self._checked):
                self._checked.extend(bytes(place + _ROWS_MORE - len(self._checked)))
            if google_crc32c.value(bytes(record.payload)) != record.payload_crc32c:
                raise KnowledgeBaseDamaged(
                    f"the payload of memory {record.memory_id} (record {row} of {self.file.path.name})"
                    " is not what was written"
                )
            self._checked[place] = 1
        return record.payload
