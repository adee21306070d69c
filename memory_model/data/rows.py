"""Rows of a file of questions: each with the text that answers it, and what else is known about the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import StrictBool, TypeAdapter, ValidationError

from memory_model.errors import InvalidInput
from memory_model.models.tensor_files import read_json


@dataclass(frozen=True)
class Row:
    """One question with the text that answers it.

    title: of the document that knowledge and distractors are from, put before each reference. answers: other right
    answers. distractors: the texts that are read beside the knowledge; None draws them from the other rows. answerable:
    False when neither the knowledge nor the distractors answer the question, so that the right answer is to say so.
    plausible: what seems to answer such a question.
    """

    knowledge: str
    question: str
    right_answer: str
    title: str = ""
    answers: tuple[str, ...] = ()
    distractors: tuple[str, ...] | None = None
    answerable: StrictBool = True
    plausible: str = ""

    @property
    def right_answers(self) -> tuple[str, ...]:
        """Every answer that counts as right, `right_answer` first."""
        return (self.right_answer, *self.answers)


def read_rows(data: Any, limit: int | None = None) -> list[Row]:
    """Rows of a parsed data file; other fields are ignored. Raises InvalidInput naming the field that is wrong."""
    if not isinstance(data, list) or not data:
        raise InvalidInput("an evaluation file is a JSON list of {knowledge, question, right_answer}")
    try:
        rows = TypeAdapter(list[Row]).validate_python(data[:limit])
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in wrong["loc"][1:]) or "the whole"
        raise InvalidInput(f"an evaluation row's {where}: {wrong['msg']}") from error
    texts = (t for r in rows for t in (r.knowledge, r.question, *r.answers, *(r.distractors or ())))
    if not all(text.strip() for text in texts):
        raise InvalidInput("an evaluation row's texts must not be empty")
    return rows


def open_rows(path: Path, limit: int | None = None, advice: str = "an evaluation file is a JSON list") -> list[Row]:
    """Rows of a file; raises MissingFile with the advice, CorruptFile or InvalidInput."""
    if path.suffix == ".jsonl":
        raise InvalidInput(f"{path} is JSON Lines by its name: {advice}")
    return read_rows(read_json(path, list, advice), limit)
