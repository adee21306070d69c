"""A corpus to train on (docs/data.md): passages in `SOURCE.jsonl`, and people's questions about them.

Passages are read from their files as needed: only the offset of each line is held in memory, 10 bytes a passage.
Sources draw passages by number, so the state of their random generator is all that an exact resume needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from memory3.errors import CorruptFile, InvalidInput, MissingFile

PASSAGE_QUESTIONS = Path("asked") / "questions.jsonl"
"""The corpus' file of `PassageQuestion`."""
_HELD_OUT = 0.03  # share of the documents that no training sees

Line = TypeVar("Line", "Passage", "PassageQuestion")


@dataclass(frozen=True)
class Passage:
    """One passage. `key` is `document` or `document#n`; all passages of a document fall on one side of the split."""

    source: str
    key: str
    title: str
    text: str

    @property
    def document(self) -> str:
        """The document that it is a part of."""
        return self.key.partition("#")[0]


@dataclass(frozen=True)
class PassageQuestion:
    """A question with an answer in the words of its reference (`text`: title and body), a part of a passage."""

    question: str
    answer: str
    text: str
    source: str
    key: str


def held_out(source: str, key: str) -> bool:
    """Whether a passage is kept out of all training: about 3 % of the documents, fixed by source and key.

    Passages of one document fall together, and so do the same article's in `wikipedia` and `wikipedia-articles`.
    """
    family, document = source.partition("-")[0], key.partition("#")[0]
    digest = hashlib.sha256(f"corpus {family} {document}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < _HELD_OUT * 2**32


def corpus_files(corpus: Path) -> list[Path]:
    """The corpus' files of passages, in order of their names; raises MissingFile."""
    files = sorted(corpus.glob("*.jsonl"))
    if not files:
        raise _missing(corpus)
    return files


def read_rows(path: Path, kind: type[Line]) -> Iterator[Line]:
    """The passages or questions of a JSONL file. Raises MissingFile, or CorruptFile with the line's number."""
    return (row for _, row in _rows_with_offsets(path, kind))


def _rows_with_offsets(path: Path, kind: type[Line]) -> Iterator[tuple[int, Line]]:
    """Each row with the byte at which its line starts."""
    if not path.is_file():
        raise _missing(path)
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield start, kind(**json.loads(line))
            except (ValueError, TypeError) as error:
                name = "passage" if kind is Passage else "question"
                raise CorruptFile(f"{path}, line {number} is no {name} row (docs/data.md): {error}") from error
            start += len(line)


def _missing(path: Path) -> MissingFile:
    return MissingFile(f"no corpus at {path}: `python -m experiments prepare-data` makes one (docs/data.md)")


class PassageFiles(Sequence[Passage]):
    """The passages that training may see, file by file in their order.

    Raises CorruptFile with the line's number, and InvalidInput where nothing is left. One thread at a time.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        rows = (_rows_with_offsets(path, Passage) for path in files)
        starts = [[start for start, p in found if not held_out(p.source, p.key)] for found in rows]
        self._file = np.repeat(np.arange(len(files), dtype=np.int16), [len(s) for s in starts])
        self._start = np.array([start for found in starts for start in found], np.int64)
        if not len(self._start):
            raise InvalidInput("the corpus has no passage to train on: docs/data.md describes it")
        self._files = [path.open("rb") for path in files]

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, number: int) -> Passage:  # type: ignore[override]
        file = self._files[self._file[number]]
        file.seek(self._start[number])
        return Passage(**json.loads(file.readline()))
