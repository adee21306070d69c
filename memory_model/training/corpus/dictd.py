"""The dictd format: a text of entries (`.dict.dz`, gzip) and an index of headwords with offsets and lengths.

A line of the index is `headword TAB offset TAB length`; both numbers are in bytes of the unpacked text,
written in base 64 with the digits A-Z, a-z, 0-9, +, / (most significant first, no padding).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memory_model.errors import CorruptFile

_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}


@dataclass(frozen=True)
class Entry:
    """One entry: the headwords that lead to it and its text as it stands in the dictionary."""

    headwords: tuple[str, ...]
    text: str


def encode_number(value: int) -> str:
    """`value` >= 0 in the index's base 64."""
    digits = _DIGITS[value % 64]
    while value := value // 64:
        digits = _DIGITS[value % 64] + digits
    return digits


def decode_number(digits: str) -> int:
    """The number that the index writes as `digits`; raises CorruptFile for anything else."""
    if not digits or any(digit not in _VALUES for digit in digits):
        raise CorruptFile(f"{digits!r} is no number of a dictd index")
    value = 0
    for digit in digits:
        value = value * 64 + _VALUES[digit]
    return value


def entries(dictionary: Path, index: Path) -> Iterator[Entry]:
    """The entries in the order of the text, each once; the dictionary's own 00-database entries are left out.

    Raises CorruptFile when the index points outside the text or either file is not of the format.
    """
    try:
        with gzip.open(dictionary) as file:
            text = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptFile(f"{dictionary} is no gzip file: {error}") from error
    headwords: dict[tuple[int, int], list[str]] = {}
    for number, line in enumerate(index.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        columns = line.split("\t")
        if len(columns) < 3:
            raise CorruptFile(f"{index}, line {number}: not headword, offset and length")
        start, length = decode_number(columns[1]), decode_number(columns[2])
        if start + length > len(text):
            raise CorruptFile(f"{index}, line {number}: points behind the end of {dictionary.name}")
        if not columns[0].startswith("00"):
            headwords.setdefault((start, length), []).append(columns[0])
    for (start, length), words in sorted(headwords.items()):
        yield Entry(tuple(words), text[start : start + length].decode("utf-8", errors="replace"))
