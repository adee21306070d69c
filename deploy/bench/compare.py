"""Two results of one scenario: which of their figures became better, worse or stayed the same, with an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deploy.bench.scenario import ScenarioFailed, Sheet

TOLERANCE = 0.03
"""Relative changes smaller than this are no change, however narrow the intervals are."""
SMALLER_IS_BETTER = (
    "_ms",
    "_us",
    "_ns",
    "_per_chunk",
    "_error",
    "_bytes",
    "_mb",
    "late_chunks",
    "failed_chunks",
)
ROW_IS_ABOUT = {
    "fault": "", "store": "", "model": "", "rtt_ms": "ms", "bandwidth_mbit": "Mbit/s", "loss": "lost",
    "references": "references", "dim": "dimensions", "clients": "clients",
}  # fmt: skip
"""Keys that tell a table's rows apart, with their units."""


@dataclass(frozen=True)
class Verdict:
    """One figure, before and after. change: relative, positive is more. word: better, worse, same or unclear."""

    name: str
    before: float
    after: float
    word: str

    @property
    def change(self) -> float:
        """Relative change; 0 where the figure was 0."""
        return (self.after - self.before) / abs(self.before) if self.before else 0.0


def compare(
    before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float = TOLERANCE
) -> list[Verdict]:
    """A verdict on every figure that both results have with a confidence interval.

    Worse or better: the intervals do not touch and the change is larger than `tolerance`. Unclear: the change is
    larger but the intervals overlap, so more rounds are needed. Raises ScenarioFailed for different scenarios.
    """
    if before.get("scenario") != after.get("scenario"):
        raise ScenarioFailed(
            f"results of {before.get('scenario')} and {after.get('scenario')} cannot be compared"
        )
    old, new = figures(before), figures(after)
    return [_judge(name, old[name], new[name], tolerance) for name in old if name in new]


def figures(keys: Any, place: str = "") -> dict[str, tuple[float, float, float]]:
    """Every figure with an interval, (value, low, high), by name; those of a table's rows by what the row is about."""
    found: dict[str, tuple[float, float, float]] = {}
    if isinstance(keys, Mapping):
        for name, (low, high) in keys.get("intervals", {}).items():
            found[place + name] = (float(keys[name]), float(low), float(high))
        for name, below in keys.items():
            if name != "intervals":
                found |= figures(below, f"{place}{name}: " if isinstance(below, Mapping) else place)
    elif isinstance(keys, list):
        for row in filter(lambda row: isinstance(row, Mapping), keys):
            about = [f"{row[name]} {unit}".strip() for name, unit in ROW_IS_ABOUT.items() if name in row]
            found |= figures(row, f"{place}{', '.join(about)}: ")
    return found


def regressed(verdicts: list[Verdict]) -> bool:
    """Whether any figure became worse."""
    return any(v.word == "worse" for v in verdicts)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What makes two results hard to compare: another processor, number of threads, precision, runtime."""
    places = (("machine", "cpu"), ("machine", "cores"), ("machine", "versions"), ("settings", "threads"),
              ("model",), ("precision",), ("provider",))  # fmt: skip
    found = []
    for place in places:
        one, other = before, after
        for step in place:
            one, other = one.get(step) or {}, other.get(step) or {}
        if one != other:
            found.append(f"{'.'.join(place)}: {one} and {other}")
    return found


def sheet(verdicts: list[Verdict]) -> Sheet:
    """The verdicts as a table."""
    rows = [(v.name, f"{v.before:.4g}", f"{v.after:.4g}", f"{v.change:+.1%}", v.word) for v in verdicts]
    return Sheet("before and after", ("figure", "before", "after", "change", "verdict"), rows)


def _judge(
    name: str, before: tuple[float, float, float], after: tuple[float, float, float], tolerance: float
) -> Verdict:  # fmt: skip
    (one, old_low, old_high), (other, new_low, new_high) = before, after
    verdict = Verdict(name, one, other, "same")
    if abs(verdict.change) <= tolerance:
        return verdict
    if new_low <= old_high and old_low <= new_high:
        return Verdict(name, one, other, "unclear")
    less_is_better = name.endswith(SMALLER_IS_BETTER)
    return Verdict(name, one, other, "better" if (other < one) == less_is_better else "worse")
