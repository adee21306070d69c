"""A question about a reference, and whether a text may answer it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """A question, its answer, and the line or sentence that answers it."""

    question: str
    answer: str
    line: str


def refers_to(text: str, question: Question) -> bool:
    """Whether a text may answer the question: it holds the answering line, or the answer itself."""
    return question.line in text or question.answer.lower() in text.lower()
