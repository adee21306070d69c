"""Scores of short answers as functions of texts, and means of scores with their standard errors.

Independent of models and memories.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from memory3.text.refusal import PUNCTUATION

_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and surplus spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, right: str) -> float:
    """1.0 when the normalised texts are equal."""
    return float(normalise(answer) == normalise(right))


def token_f1(answer: str, right: str) -> float:
    """Harmonic mean of precision and recall of the normalised words."""
    found, wanted = normalise(answer).split(), normalise(right).split()
    if not found or not wanted:
        return float(found == wanted)
    same = sum((Counter(found) & Counter(wanted)).values())
    return 2 * same / (len(found) + len(wanted))


def contained(answer: str, right: str) -> float:
    """1.0 when the answer has the words of the right one, one after the other: long answers are not marked down."""
    return float(f" {normalise(right)} " in f" {normalise(answer)} ")


_DRAWS = 2000


@dataclass(frozen=True)
class Mean:
    """The mean of a score over `n` rows, and its standard error."""

    mean: float
    error: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Of one value a row; at least one."""
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        return cls(round(fmean(values), 4), round(error, 4), len(values))


@dataclass(frozen=True)
class Paired:
    """Two conditions on the same `n` rows: mean difference with its standard error, and ratio of the means.

    ratio, low, high: with a 95 % bootstrap interval over rows; None where the second mean is 0 in any draw.
    """

    difference: float
    error: float
    n: int
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> Paired:
        """Of one value a row each, in the same order."""
        gap = Mean.of([a - b for a, b in zip(first, second, strict=True)])
        pairs = np.array([first, second], np.float64)
        rows = np.random.default_rng(0).integers(0, gap.n, (_DRAWS, gap.n))
        tops, bottoms = pairs[0][rows].mean(1), pairs[1][rows].mean(1)
        if bottoms.min() <= 0:
            return cls(gap.mean, gap.error, gap.n)
        low, high = np.quantile(tops / bottoms, [0.025, 0.975])
        ratio = pairs[0].mean() / pairs[1].mean()
        return cls(gap.mean, gap.error, gap.n, *(round(float(x), 4) for x in (ratio, low, high)))
