"""Rows of a file of questions: each with the text that answers it, and what else is known about the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import StrictBool, TypeAdapter, ValidationError

from memory3.errors import InvalidInput
from memory_model.models.tensor_files import read_json


@dataclass(frozen=True)
class QuestionRow:
    """One question with the text that answers it.

    title: of the document that knowledge and distractors are from, put before each reference. answers: other right
    answers. distractors: texts that are read next to the knowledge; None draws them from the other rows. answerable:
    False when neither the knowledge nor the distractors answer the question, so that the right answer is a refusal.
    plausible: what seems to answer such a question. article: whose paragraphs are read next to each other in tuning;
    empty: those with the same title.
    """

    knowledge: str
    question: str
    right_answer: str
    title: str = ""
    answers: tuple[str, ...] = ()
    distractors: tuple[str, ...] | None = None
    answerable: StrictBool = True
    plausible: str = ""
    article: str = ""

    @property
    def right_answers(self) -> tuple[str, ...]:
        """Every answer that counts as right, `right_answer` first."""
        return (self.right_answer, *self.answers)


def read_rows(data: Any, limit: int | None = None, name: str = "an evaluation file") -> list[QuestionRow]:
    """Rows of a parsed data file; other fields are ignored. Raises InvalidInput naming the row and what is wrong."""
    if not isinstance(data, list) or not data:
        raise InvalidInput(f"{name} is no JSON list of {{knowledge, question, right_answer}}")
    try:
        rows = TypeAdapter(list[QuestionRow]).validate_python(data[:limit])
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in wrong["loc"][1:]) or "the whole"
        raise InvalidInput(f"{name}, row {int(wrong['loc'][0]) + 1}, {where}: {wrong['msg']}") from error
    for n, r in enumerate(rows, 1):
        if not all(text.strip() for text in (r.knowledge, r.question, *r.answers, *(r.distractors or ()))):
            raise InvalidInput(f"{name}, row {n}: a text is empty")
    return rows


def open_rows(
    path: Path, limit: int | None = None, advice: str = "an evaluation file is a JSON list"
) -> list[QuestionRow]:
    """Rows of a file; raises MissingFile with the advice, CorruptFile or InvalidInput."""
    if path.suffix == ".jsonl":
        raise InvalidInput(f"{path} is JSON Lines by its name: {advice}")
    return read_rows(read_json(path, list, advice), limit, str(path))
