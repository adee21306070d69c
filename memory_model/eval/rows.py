"""Rows of an evaluation file: a question, the text that answers it, and what else is known about the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memory_model.errors import InvalidInput

_TEXTS = ("knowledge", "question", "right_answer", "hallucinated_answer", "believed_answer")


@dataclass(frozen=True)
class Row:
    """One question with the text that answers it.

    hallucinated_answer: a wrong answer, for the two-way score. believed_answer: what the world says where
    the knowledge says something else (counterfactual rows). distractors: the texts that are read beside the
    knowledge; None draws them from the other rows. answerable: False when neither the knowledge nor the
    distractors answer the question, so that the right answer is to say so.
    """

    knowledge: str
    question: str
    right_answer: str
    hallucinated_answer: str = ""
    believed_answer: str = ""
    distractors: tuple[str, ...] | None = None
    answerable: bool = True

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Row:
        """A row of a data file; raises InvalidInput when a field is missing or of another type."""
        try:
            texts = {name: data[name] for name in _TEXTS[:3]} | {n: data.get(n, "") for n in _TEXTS[3:]}
            distractors = data.get("distractors")
            answerable = data.get("answerable", True)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"an evaluation row needs knowledge, question and right_answer: {error}"
            ) from error
        if not all(isinstance(t, str) for t in texts.values()) or not isinstance(answerable, bool):
            raise InvalidInput("an evaluation row's fields must be texts, and answerable true or false")
        if not texts["question"].strip() or not texts["knowledge"].strip():
            raise InvalidInput("an evaluation row's knowledge and question must not be empty")
        if distractors is not None and not (
            isinstance(distractors, list) and all(isinstance(d, str) and d.strip() for d in distractors)
        ):
            raise InvalidInput("an evaluation row's distractors must be a list of texts that are not empty")
        return cls(
            **texts, distractors=None if distractors is None else tuple(distractors), answerable=answerable
        )


def read_rows(data: Any, limit: int | None = None) -> Iterator[Row]:
    """Rows of a parsed data file; raises InvalidInput when it is no list of rows."""
    if not isinstance(data, list) or not data:
        raise InvalidInput("an evaluation file is a JSON list of {knowledge, question, right_answer}")
    for item in data[:limit]:
        yield Row.from_dict(item)
