"""Several sources of batches in one run, each with its share of the steps."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import Any

from memory_model.data.batches import Batch, BatchSource
from memory_model.errors import InvalidInput


class Mixture:
    """Draws each batch from one of its sources, by weight. Deterministic for a seed, exactly resumable."""

    def __init__(self, sources: Mapping[str, tuple[float, BatchSource]], seed: int) -> None:
        """Raises InvalidInput when there is no source or a weight is not positive."""
        if not sources or any(weight <= 0 for weight, _ in sources.values()):
            raise InvalidInput("a mixture needs at least one source, and positive weights")
        self.sources = dict(sources)
        self.random = random.Random(seed)

    def next(self) -> Batch:
        """A batch of one of the sources."""
        names = list(self.sources)
        name = self.random.choices(names, [self.sources[n][0] for n in names])[0]
        return self.sources[name][1].next()

    def state(self) -> Any:
        """Where the mixture and each of its sources stand."""
        return {
            "mixture": self.random.getstate(),
            "sources": {name: source.state() for name, (_, source) in self.sources.items()},
        }

    def restore(self, state: Any) -> None:
        """Go on from a state of a mixture with the same sources; raises InvalidInput for another."""
        if set(state["sources"]) != set(self.sources):
            raise InvalidInput(
                f"the run mixed {sorted(state['sources'])}, this one {sorted(self.sources)}: use another --out"
            )
        self.random.setstate(state["mixture"])
        for name, (_, source) in self.sources.items():
            source.restore(state["sources"][name])


def parse_weights(text: str, known: Collection[str]) -> dict[str, float]:
    """`facts:4,prose` as {"facts": 4.0, "prose": 1.0}; raises InvalidInput, also for a task that is not known."""
    weights: dict[str, float] = {}
    for entry in text.split(","):
        task, _, weight = entry.strip().partition(":")
        if task not in known:
            raise InvalidInput(f"--mixture names no task {task!r}: choose from {', '.join(known)}")
        try:
            weights[task] = float(weight or 1)
        except ValueError as error:
            raise InvalidInput(f"--mixture {entry!r}: write TASK:WEIGHT, such as facts:4") from error
    return weights
