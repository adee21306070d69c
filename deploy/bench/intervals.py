"""Variants measured in turn, and medians with bootstrap confidence intervals: what a few rounds can say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LEVEL = 0.95
RESAMPLES = 2000
LEAST_ROUNDS = 5
"""Fewer samples have no interval: their range is narrower than what they say."""
BEYOND = 10
"""A percentile needs so many samples above it."""
Sample = TypeVar("Sample")


@dataclass(frozen=True)
class Interval:
    """A median; with five samples or more, the bounds of its 95 % confidence interval."""

    value: float
    low: float | None = None
    high: float | None = None


def median_interval(samples: Sequence[float]) -> Interval:
    """The median and its percentile-bootstrap interval, with a fixed seed; raises ValueError for no samples."""
    if not len(samples):
        raise ValueError("a median needs at least one sample")
    values = np.asarray(samples, np.float64)
    middle = float(np.median(values))
    if len(values) < LEAST_ROUNDS:
        return Interval(middle)
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(middle, float(low), float(high))


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval:
    """The median of the ratios round by round: a machine that slows down slows both sides of a round."""
    return median_interval([a / b for a, b in zip(above, below, strict=True)])


def percentile(samples: Sequence[float], percent: float) -> float | None:
    """The smallest sample that `percent` of all do not exceed; None with fewer than ten samples above it."""
    if len(samples) * (1 - percent / 100) < BEYOND:
        return None
    return float(np.percentile(samples, percent, method="inverted_cdf"))


def interleave(
    variants: Mapping[str, Callable[[int], Sample]], rounds: int, *, warm_up: int = 1, label: str = "measuring"
) -> dict[str, list[Sample]]:
    """Every variant once in each round, given the round's number; each round begins with the next variant.

    Rounds of warm-up come first, have negative numbers and are discarded. Shows progress on stderr.
    """
    if rounds < 1 or warm_up < 0 or not variants:
        raise ValueError(f"nothing to measure: {len(variants)} variants, {rounds} rounds, {warm_up} of warm-up")
    names = list(variants)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=(rounds + warm_up) * len(names))
        for number in range(-warm_up, rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                progress.update(task, description=f"{label}: {name}")
                sample = variants[name](number)
                if number >= 0:
                    samples[name].append(sample)
                progress.advance(task)
    return samples
