"""What people asked about passages of a corpus: one line of its `asked/questions.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memory_model.data.corpus.passages import read_rows

FILE = Path("asked") / "questions.jsonl"


@dataclass(frozen=True)
class Asked:
    """A question with an answer in the words of its reference (`text`: title and body), a part of a passage."""

    question: str
    answer: str
    text: str
    source: str
    key: str


def read_asked(path: Path) -> Iterator[Asked]:
    """The rows of a JSONL file. Raises MissingFile, or CorruptFile with the line's number."""
    return read_rows(path, Asked, "question", "prepare-data --questions")
