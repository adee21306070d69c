"""Variants measured in turn, so that a machine which drifts drifts for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Sample = TypeVar("Sample")


def interleave(
    variants: Mapping[str, Callable[[int], Sample]], rounds: int, *, warm_up: int = 1, label: str = "measuring"
) -> dict[str, list[Sample]]:  # fmt: skip
    """Every variant once in each round, given the round's number; each round begins with the next variant.

    Rounds of warm-up come first, have negative numbers and are thrown away. Shows progress on stderr.
    """
    if rounds < 1 or warm_up < 0 or not variants:
        raise ValueError(
            f"nothing to measure: {len(variants)} variants, {rounds} rounds, {warm_up} of warm-up"
        )
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
