"""What may not stand in the corpus: text of a test set, and text that stands there already.

A passage that shares eight words in a row with a file to exclude is dropped. A passage of which more than
half (in characters of sentences) was seen before, in this source or in one before it, is dropped too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from memory_model.errors import CorruptFile, MissingFile

GRAM = 8  # words in a row that make an overlap
_WORD = re.compile(r"\w+")


def grams(text: str, size: int = GRAM) -> Iterator[tuple[str, ...]]:
    """Every `size` words in a row of `text`, lower case and without punctuation."""
    words = _WORD.findall(text.lower())
    return zip(*(words[start:] for start in range(size)), strict=False)


class Exclusion:
    """The word sequences of the files that nothing in the corpus may share."""

    def __init__(self, texts: Iterable[str] = (), size: int = GRAM) -> None:
        self._size = size
        self._grams = {gram for text in texts for gram in grams(text, size)}

    @classmethod
    def of_files(cls, paths: Iterable[Path]) -> Exclusion:
        """All strings of JSON files, the lines of JSONL files, the whole of others.

        Raises MissingFile, or CorruptFile when a .json or .jsonl file is none.
        """
        return cls(text for path in paths for text in _texts(path))

    def hits(self, text: str) -> bool:
        """Whether `text` shares a word sequence with the files."""
        return bool(self._grams) and not self._grams.isdisjoint(grams(text, self._size))


class Seen:
    """Sentences met so far, as 8-byte digests; decides which texts are near-duplicates."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def repeats(self, text: str) -> bool:
        """Whether more than half of `text` was seen before; a text that was not is remembered."""
        sizes: dict[bytes, int] = {}
        for sentence in re.split(r"[.!?;:]\s+|\n", text.lower()):
            words = _WORD.findall(sentence)
            if len(words) > 3:
                digest = blake2b(" ".join(words).encode(), digest_size=8).digest()
                sizes[digest] = len(sentence)
        known = sum(size for digest, size in sizes.items() if digest in self._digests)
        if 2 * known > sum(sizes.values()):
            return True
        self._digests.update(sizes)
        return False


def _texts(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise MissingFile(f"no file {path} to exclude: name an existing one after --exclude, or leave it out")
    content = path.read_text(encoding="utf-8")
    if path.suffix not in (".json", ".jsonl"):
        yield content
        return
    try:
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        for line in lines:
            yield from _strings(json.loads(line))
    except json.JSONDecodeError as error:
        raise CorruptFile(f"{path} is no {path.suffix} file: {error}") from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
