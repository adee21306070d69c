"""Medians with bootstrap confidence intervals: what a handful of rounds on a shared machine can say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A median and the bounds between which it lies with a confidence of 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def median_interval(samples: Sequence[float], seed: int = 0) -> Interval:
    """The median of `samples` and its percentile-bootstrap interval; raises ValueError for none.

    The same samples give the same interval: the resampling has a fixed seed.
    """
    if not len(samples):
        raise ValueError("a median needs at least one sample")
    values = np.asarray(samples, np.float64)
    drawn = np.random.default_rng(seed).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(float(np.median(values)), float(low), float(high))


def ratio_interval(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Interval:
    """The median of the ratios round by round: a machine that is slow for a while is slow for both sides."""
    if len(above) != len(below):
        raise ValueError(f"{len(above)} rounds above the line and {len(below)} below")
    return median_interval([a / b for a, b in zip(above, below, strict=True)], seed)
