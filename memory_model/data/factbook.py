"""The World Factbook as a knowledge base and as questions with checkable answers.

`data/factbook.jsonl` (public domain) has one document for each country,
one fact for each line (`Area - total: 28,748 sq km`). `facts` reads such a document as (field, value), and
`questions` asks for the facts whose value is short. A tenth of the countries is held out of all tuning.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory3.errors import CorruptFile, MissingFile

FACTBOOK = Path("data/factbook.jsonl")


@dataclass(frozen=True)
class Question:
    """A question, its answer, and the line or sentence that answers it."""

    question: str
    answer: str
    line: str

    @property
    def field(self) -> str:
        """The field of a fact that it asks for."""
        return self.line.partition(":")[0]


def refers_to(text: str, question: Question) -> bool:
    """Whether a text may answer the question: it holds the answering line, or the answer itself."""
    return question.line in text or question.answer.lower() in text.lower()


_TEMPLATES: dict[str, list[str]] = json.loads(Path(__file__).with_name("factbook_questions.json").read_text())
_DATE = re.compile(r"\s*\((?:[^()]*\b\d{4}(?:[./-]\d+)?\b[^()]*|FY[^()]*)\)\s*$")
_LONGEST_ANSWER = 60  # characters


def held_out(key: str) -> bool:
    """Whether a country's document is kept out of all tuning (about one in ten, fixed by its key)."""
    return hashlib.sha256(f"held out {key}".encode()).digest()[0] < 26


def read_jsonl(path: str | Path, fields: Sequence[str] = ("key", "title", "text")) -> list[dict[str, Any]]:
    """The objects of a JSONL file, which have these texts; raises MissingFile or CorruptFile with the line's number."""
    path, form = Path(path), f"{{{', '.join(fields)}}}"
    if not path.is_file():
        raise MissingFile(f"no JSONL file at {path}: it has an object {form} in every line")
    result = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise CorruptFile(f"{path}, line {number}: {error}") from error
        if row is not None:
            if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in fields):
                raise CorruptFile(f"{path}, line {number}: expected an object of texts {form}")
            result.append(row)
    if not result:
        raise CorruptFile(f"{path} is empty: it has an object {form} in every line")
    return result


def facts(text: str) -> Iterator[tuple[str, str, str]]:
    """(field, value, line) of the lines of a document or a reference that hold a fact."""
    for line in text.splitlines():
        field, colon, value = line.partition(": ")
        if colon and 2 < len(field) < 90 and field[0].isupper():
            yield field, value, line


def questions(country: str, text: str) -> list[list[Question]]:
    """For each short fact of `text`, the ways to ask for it."""
    result = []
    for field, value, line in facts(text):
        answer = _DATE.sub("", value).strip().rstrip(".")
        if not 1 <= len(answer) <= _LONGEST_ANSWER or answer in ("NA", "none"):
            continue
        result.append([Question(w.format(c=country), answer, line) for w in _TEMPLATES.get(field) or _generic(field)])
    return result


_SENTENCES = (
    "The {field} of {country} is {value}.",
    "{country}'s {field} is {value}.",
    "In {country}, the {field} is {value}.",
    "For {country} the {field} is given as {value}.",
)


def sentence(country: str, line: str, rng: random.Random) -> str:
    """A fact's line as a sentence of prose."""
    field, _, value = line.partition(": ")
    return rng.choice(_SENTENCES).format(country=country, field=_spoken(field), value=value.rstrip("."))


def _generic(field: str) -> list[str]:
    name, _, part = field.partition(" - ")
    second = f"{name}, {part}: what is it for {{c}}?" if part else f"What is {{c}}'s {_spoken(field)}?"
    return [f"What is the {_spoken(field)} of {{c}}?", second]


def _spoken(field: str) -> str:
    """A field in a sentence: `Area - total` is "area (total)"; an acronym keeps its capitals."""
    name, _, part = field.partition(" - ")
    lowered = name if name[1:2].isupper() else name[0].lower() + name[1:]
    return f"{lowered} ({part})" if part else lowered
