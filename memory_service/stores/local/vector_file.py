r"""The vectors of all rows, float32 of unit length one after the other: what every search is exact about.

file     header | vector 0 | vector 1 | …
header   b"M3VECT\0\1" | dimension u32 | CRC-32C of these, filled up to 64 bytes
"""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import numpy as np

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores.local.disk import MappedFile

_MAGIC = b"M3VECT\0\1"
_HEADER = struct.Struct("<8sI")
_HEADER_BYTES = 64


class VectorFile:
    """Reading is thread-safe; there is one writer."""

    def __init__(self, file: MappedFile, dimension: int) -> None:
        self.file = file
        self.dimension = dimension
        self._last: tuple[int, np.ndarray] | None = None

    @staticmethod
    def _head(dimension: int) -> bytes:
        head = _HEADER.pack(_MAGIC, dimension)
        return (head + google_crc32c.value(head).to_bytes(4, "little")).ljust(_HEADER_BYTES, b"\0")

    @classmethod
    def create(cls, path: Path, dimension: int) -> VectorFile:
        """A new, empty one."""
        file = MappedFile(path, create=True)
        file.write([cls._head(dimension)], 0)
        file.sync()
        return cls(file, dimension)

    @classmethod
    def open(cls, path: Path, dimension: int, *, writable: bool = True) -> VectorFile:
        """One that is there; raises KnowledgeBaseDamaged when it is missing or begins otherwise."""
        if not path.is_file():
            raise KnowledgeBaseDamaged(f"{path.name} is missing")
        file = MappedFile(path, writable=writable)
        try:
            if bytes(file.view(_HEADER_BYTES)[:_HEADER_BYTES]) != cls._head(dimension):
                raise KnowledgeBaseDamaged(f"{path.name} does not begin as it was written")
        except BaseException:
            file.close()
            raise
        return cls(file, dimension)

    def size_for(self, rows: int) -> int:
        """Bytes of a file that holds this many vectors."""
        return _HEADER_BYTES + rows * self.dimension * 4

    def write(self, row: int, vectors: np.ndarray) -> None:
        """Writes float32 [n, dimension] from `row` on; durable after `sync`."""
        self.file.write([np.ascontiguousarray(vectors, "<f4").tobytes()], self.size_for(row))

    def rows(self, end: int) -> np.ndarray:
        """The first `end` vectors, float32 [end, dimension], in the mapped file."""
        last = self._last
        if last is not None and last[0] == end:
            self.file.check_reaches(self.size_for(end))
            return last[1]
        view = self.file.view(self.size_for(end))
        flat = np.frombuffer(view, "<f4", end * self.dimension, _HEADER_BYTES)
        rows = flat.reshape(end, self.dimension)
        self._last = end, rows
        return rows
