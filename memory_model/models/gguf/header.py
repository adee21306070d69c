"""The header of a GGUF file: metadata and the offset of each tensor; independent of models.

gguf's own reader makes a numpy view of every string of a vocabulary (300 MB and many seconds for 150,000 tokens).
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType

from memory3.errors import CorruptFile, InvalidInput, Memory3Error, MissingFile

_REMEDY = "download it again"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct's letter of each metadata type."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the file stores it. shape: of the values, rows first; data: uint8 [rows, bytes of a row]."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    data: np.ndarray

    @property
    def bits(self) -> float:
        """Bits of a value."""
        return 8 * self.data.nbytes / prod(self.shape)

    def rows(self, chosen: np.ndarray) -> StoredTensor:
        """A table of some of the rows of this one."""
        return StoredTensor(self.name, (len(chosen), self.shape[1]), self.kind, self.data[chosen])


@dataclass
class Header:
    """Metadata by key and tensors by name, of one file or of all parts of a split one, and the mapped files."""

    fields: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    maps: list[mmap.mmap] = field(default_factory=list)

    def release(self) -> None:
        """Let go of the pages that were read: they stay in the system's cache, and are no longer this process's."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self.maps:
                mapped.madvise(mmap.MADV_DONTNEED)


def part_files(path: Path) -> list[Path]:
    """The file, or all parts of the split that it belongs to; raises MissingFile for a part that is not there."""
    named = _PART.fullmatch(path.name)
    if not path.is_file() and not named:
        raise MissingFile(f"no GGUF file at {path}")
    if not named:
        return [path]
    count = int(named[3])
    files = [path.with_name(f"{named[1]}-{number:05d}-of-{named[3]}.gguf") for number in range(1, count + 1)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise MissingFile(f"{path.parent} lacks {', '.join(missing)}, part of a split of {count}: {_REMEDY}")
    return files


def stem_of(path: Path) -> str:
    """The file's name without .gguf and without the number of a part."""
    named = _PART.fullmatch(path.name)
    return named[1] if named else path.stem


def read_header(files: list[Path]) -> Header:
    """Metadata of the first file, tensors of all; raises CorruptFile, InvalidInput, MissingFile."""
    whole = Header()
    for number, path in enumerate(files):
        try:
            part = _Parser(path).parse()
        except Memory3Error:
            raise
        except (struct.error, ValueError, OverflowError, KeyError, MemoryError) as error:
            raise CorruptFile(f"{path} is not a readable GGUF file: {error}: {_REMEDY}") from error
        count = int(part.fields.get("split.count", 1))
        if count != len(files) or int(part.fields.get("split.no", 0)) != number:
            raise MissingFile(
                f"{path} is part {int(part.fields.get('split.no', 0)) + 1} of {count}: keep all parts in one folder "
                f"under the names NAME-00001-of-{count:05d}.gguf"
            )
        if twice := set(part.tensors) & set(whole.tensors):
            raise CorruptFile(f"{path}: {min(twice)} is in another part too: {_REMEDY}")
        whole.fields = whole.fields or part.fields
        whole.tensors |= part.tensors
        whole.maps += part.maps
    return whole


class _Parser:
    """Reads one file from the front. Tensors are views of the mapped file."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        with path.open("rb") as file:
            self._size = path.stat().st_size
            if self._size < 24:
                raise CorruptFile(f"{path} is truncated: {self._size} bytes: {_REMEDY}")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def parse(self) -> Header:
        """Metadata and tensors."""
        if self._map[:4] != b"GGUF":
            raise CorruptFile(f"{self._path} is not a GGUF file: it does not begin with GGUF")
        self._at = 4
        version = self._number("I")
        if version not in (2, 3):
            raise InvalidInput(
                f"{self._path}: GGUF version {version} is not read, only 2 and 3 in little-endian: convert the model "
                "again with llama.cpp's converter"
            )
        tensors, count = self._number("Q"), self._number("Q")
        header = Header(maps=[self._map])
        for _ in range(count):
            key = self._string()
            header.fields[key] = self._value(self._number("I"))
        stored = [self._tensor_info() for _ in range(tensors)]
        alignment = int(header.fields.get("general.alignment", GGUF_DEFAULT_ALIGNMENT))
        start = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in stored:
            header.tensors[name] = self._tensor(name, shape, kind, start + offset)
        return header

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        shape = tuple(self._number("Q") for _ in range(self._number("I")))
        return name, shape[::-1], self._number("I"), self._number("Q")

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, start: int) -> StoredTensor:
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise InvalidInput(f"{self._path}: {name} has block type {number}, which is not read") from error
        block, size = GGML_QUANT_SIZES[kind]
        row = shape[-1] if shape else 1
        if row % block:
            raise CorruptFile(f"{self._path}: rows of {name} have {row} values, not whole blocks of {block}: {_REMEDY}")
        rows, width = prod(shape[:-1]), row // block * size
        end = start + rows * width
        if end > self._size:
            raise CorruptFile(f"{self._path} is truncated: {self._size} bytes, {name} ends at {end}: {_REMEDY}")
        data = np.frombuffer(self._map, np.uint8, rows * width, start).reshape(rows, width)
        return StoredTensor(name, shape, kind, data)

    def _number(self, letter: str) -> Any:
        value = struct.unpack_from(f"<{letter}", self._map, self._at)[0]
        self._at += struct.calcsize(letter)
        return value

    def _string(self) -> str:
        length = self._number("Q")
        start, self._at = self._at, self._at + length
        if self._at > self._size:
            raise ValueError(f"a text of {length} bytes passes the end of the file")
        return self._map[start : self._at].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        of, count = self._number("I"), self._number("Q")
        if count > self._size:
            raise ValueError(f"a list of {count} entries passes the end of the file")
        if of not in _SCALARS:
            return [self._value(of) for _ in range(count)]
        numbers = np.frombuffer(self._map, f"<{_SCALARS[of]}", count, self._at)
        self._at += numbers.nbytes
        return numbers.tolist()
