"""Scores of short answers, every one a function of texts: SQuAD's, exact values, refusals, whose word it is.

Knows nothing about models or memories.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation + "’‘“”")
# A number with its inner separators (28,748; 4.5; 2010-15; 12:30), or a word that begins with a capital letter.
_VALUE = re.compile(r"\d+(?:[.,:/-]\d+)*|[^\W\d_][\w'’]*(?:-[\w'’]+)*")
_REFUSAL = re.compile(
    r"(sorry )?i (do not|dont|cannot|cant) (know|say|tell|answer)\b"
    r"|(sorry )?i am not sure\b|im not sure\b|(it|that) is not (known|mentioned|stated|given)\b|unknown$"
)

REFUSAL = "I don't know."
"""What a tuned model says when none of its memories answers."""


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and surplus spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, right: str) -> float:
    """1.0 when the normalised texts are equal."""
    return float(normalise(answer) == normalise(right))


def token_f1(answer: str, right: str) -> float:
    """Harmonic mean of precision and recall of the normalised words."""
    found, wanted = normalise(answer).split(), normalise(right).split()
    if not found or not wanted:
        return float(found == wanted)
    same = sum((Counter(found) & Counter(wanted)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(found), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def values(text: str) -> list[str]:
    """What a careful reader would check in a text: its numbers and its capitalised words, in order.

    A number keeps its inner separators (`28,748`, `4.5`, `2010-15`); dates and names fall apart into
    numbers and capitalised words. The first word of a sentence counts when it is capitalised.
    """
    return [m for m in _VALUE.findall(text) if m[0].isdigit() or m[0].isupper()]


def exact_values(answer: str, right: str) -> float | None:
    """Share of the right answer's values that stand in the answer, letter for letter; None if it has none.

    Repeated values must be repeated. What else the answer says costs nothing here: that is F1's work.
    """
    wanted = Counter(values(right))
    if not wanted:
        return None
    return (wanted & Counter(values(answer))).total() / wanted.total()


def is_refusal(answer: str) -> bool:
    """Whether an answer begins by saying that it does not know, in one of a few usual ways."""
    return _REFUSAL.match(normalise(answer)) is not None


def says(answer: str, claim: str) -> bool:
    """Whether the normalised words of `claim` stand in `answer`, together and in order, accents aside."""
    words = normalise(_plain(claim))
    return bool(words) and f" {words} " in f" {normalise(_plain(answer))} "


def _plain(text: str) -> str:
    """Letters without their accents: Brasília is Brasilia."""
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
