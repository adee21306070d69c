"""From measured sizes to sizes that nobody has at hand: straight lines, and what they say of 110 million references.

Memory and disk are fixed + each x references, by least squares over the largest sizes that were measured. The time of
a search is fixed + step x log2(references): a graph's search grows by a step with each doubling. Shards are memory
over what one machine has for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PAPER_REFERENCES = 110_000_000
"""Of the paper's knowledge base."""
LEAST_REFERENCES = 30_000
"""The largest size that was measured must be this at least for lines to be drawn through: smaller stores' costs are
mostly fixed, and what they grow by is lost in what two runs differ by."""


@dataclass(frozen=True)
class Line:
    """value = fixed + each * x; never below zero."""

    fixed: float
    each: float

    @classmethod
    def through(cls, x: Sequence[float], y: Sequence[float]) -> Line:
        """Least squares; what does not grow is constant, and one point alone is taken as proportional."""
        if len(x) == 1:
            return cls(0.0, y[0] / x[0])
        each, fixed = np.polyfit(np.asarray(x, float), np.asarray(y, float), 1)
        return cls(float(fixed), float(each)) if each > 0 else cls(float(np.mean(y)), 0.0)

    def at(self, x: float) -> float:
        """The value there."""
        return max(0.0, self.fixed + self.each * x)


@dataclass(frozen=True)
class Growth:
    """How one engine's cost grows, from rows of `growth.cost_of`."""

    memory: Line
    disk: Line
    search_ms: Line

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Growth:
        """rows: of one engine; used are those within a tenth of the largest, as small stores work otherwise."""
        largest = max(row["references"] for row in rows)
        rows = [row for row in rows if row["references"] * 10 >= largest]
        sizes = [float(row["references"]) for row in rows]
        return cls(
            Line.through(sizes, [row["memory_bytes"] for row in rows]),
            Line.through(sizes, [row["disk_bytes"] for row in rows]),
            Line.through([math.log2(size) for size in sizes], [row["search_p50_ms"] for row in rows]),
        )

    def needs(self, references: int, payload_bytes: int, machine_bytes: int) -> dict[str, Any]:
        """What so many references take; machine_bytes: memory that one machine has for its store."""
        memory = self.memory.at(references)
        shards = max(1, math.ceil(memory / machine_bytes))
        return {
            "references": references,
            "memory_bytes": round(memory),
            "disk_bytes": round(self.disk.at(references) + references * payload_bytes),
            "shards": shards,
            "search_p50_ms": round(self.search_ms.at(math.log2(max(2.0, references / shards))), 3),
        }
