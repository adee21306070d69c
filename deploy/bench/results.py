"""Results as files, `results/<scenario>.json`, and what became better or worse from one to another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.bench import machine
from deploy.bench.scenario import Direction, Keys, Scenario, ScenarioFailed, Settings, Sheet, find_scenario

RESULTS = Path(__file__).with_name("results")
FORMAT_VERSION = 3
TOLERANCE = 0.03
"""Relative changes smaller than this are no change, however narrow the intervals are."""
ROW_IS_ABOUT = {
    "store": "", "model": "", "rtt_ms": "ms", "bandwidth_mbit": "Mbit/s", "loss": "lost", "references": "references",
}  # fmt: skip
"""Keys that tell a table's rows apart, with their units."""


def measure(
    scenario: Scenario[Any], settings: Settings, *, quick: bool = False, folder: Path = RESULTS
) -> Keys:
    """Measure a scenario and write its result; returns what was written. Raises ScenarioFailed.

    On a Jetson, power, clocks and temperatures are recorded all the while.
    """
    described = machine.describe(settings.threads)
    with machine.recording() as recorded:
        keys = scenario.measure(settings)
    result: Keys = {
        "scenario": scenario.name, "format_version": FORMAT_VERSION, "quick": quick,
        "machine": {**described, **recorded}, "settings": settings.model_dump(mode="json"), **keys,
    }  # fmt: skip
    write(result, folder / f"{scenario.name}.json")
    if missing := [name for name in scenario.promised if name not in keys]:
        raise ScenarioFailed(f"scenario {scenario.name} did not measure what it promises: {missing}")
    if unknown := {name.rpartition(": ")[2] for name in figures(keys)} - set(scenario.directions):
        raise ScenarioFailed(f"scenario {scenario.name} declares no direction for {sorted(unknown)}")
    return result


def write(result: Keys, path: Path) -> None:
    """To a temporary name first, so that a result is whole or absent. NaN is refused."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def read(path: Path) -> Keys:
    """A result; raises ScenarioFailed for a file that is none, or one of another version."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ScenarioFailed(f"no result at {path}: run `make bench-{path.stem}`") from None
    except (OSError, ValueError) as error:
        raise ScenarioFailed(f"{path} cannot be read: {error}") from error
    if not isinstance(result, dict) or result.get("format_version") != FORMAT_VERSION:
        raise ScenarioFailed(f"{path} is no result of this version: run `make bench-{path.stem}` again")
    return result


@dataclass(frozen=True)
class Verdict:
    """One figure, before and after. word: better, worse, same, unclear, or changed where neither is better."""

    name: str
    before: float
    after: float
    word: str

    @property
    def change(self) -> float:
        """Relative change, positive for more; 0 where the figure was 0."""
        return (self.after - self.before) / abs(self.before) if self.before else 0.0


def compare(before: Keys, after: Keys, tolerance: float = TOLERANCE) -> list[Verdict]:
    """A verdict on every figure that both results have with a direction.

    Worse or better: the intervals do not touch and the change is larger than `tolerance`. Unclear: the change is
    larger, but the intervals overlap or a result has too few rounds for one. Raises ScenarioFailed for results of
    different scenarios.
    """
    if before["scenario"] != after["scenario"]:
        raise ScenarioFailed(f"results of {before['scenario']} and {after['scenario']} cannot be compared")
    directions = find_scenario(before["scenario"]).directions
    old, new = figures(before), figures(after)
    return [
        _judge(name, old[name], new[name], directions.get(name.rpartition(": ")[2], "none"), tolerance)
        for name in old
        if name in new
    ]


Figure = tuple[float, tuple[float, float] | None]


def figures(keys: Any, place: str = "") -> dict[str, Figure]:
    """Every figure with its interval by name; those of a table's rows by what the row is about."""
    found: dict[str, Figure] = {}
    if isinstance(keys, Mapping):
        for name, bounds in keys.get("intervals", {}).items():
            found[place + name] = float(keys[name]), tuple(bounds) if bounds else None
        for name, below in keys.items():
            if name != "intervals":
                found |= figures(below, f"{place}{name}: " if isinstance(below, Mapping) else place)
    elif isinstance(keys, list):
        for row in filter(lambda row: isinstance(row, Mapping), keys):
            about = [f"{row[name]} {unit}".strip() for name, unit in ROW_IS_ABOUT.items() if name in row]
            found |= figures(row, f"{place}{', '.join(about)}: ")
    return found


def differences(before: Keys, after: Keys) -> list[str]:
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


def _judge(name: str, before: Figure, after: Figure, better: Direction, tolerance: float) -> Verdict:
    (one, old), (other, new) = before, after
    verdict = Verdict(name, one, other, "same")
    if abs(verdict.change) <= tolerance:
        return verdict
    if old is None or new is None or (new[0] <= old[1] and old[0] <= new[1]):
        return Verdict(name, one, other, "unclear")
    if better == "none":
        return Verdict(name, one, other, "changed")
    return Verdict(name, one, other, "better" if (other > one) == (better == "more") else "worse")
