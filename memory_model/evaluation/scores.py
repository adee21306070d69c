"""Scores of short answers: exact match and token F1 with SQuAD's normalisation."""

from __future__ import annotations

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


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
