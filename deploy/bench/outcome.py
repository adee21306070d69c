"""Results as files, `results/<scenario>.json`, and what became better or worse from one to another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.bench import machine
from deploy.bench.scenario import Keys, Scenario, ScenarioFailed, Settings, Sheet, find_scenario

# Beside a module of that name mypy would take the folder for a package.
RESULTS = Path(__file__).with_name("results")
FORMAT_VERSION = 3
TOLERANCE = 0.03
"""Relative changes smaller than this are no change, however narrow the intervals are."""
ROW_IS_ABOUT = {"rtt_ms": "ms", "bandwidth_mbit": "Mbit/s", "loss": "lost"}
"""Keys that tell a table's rows apart, with their units."""


def measure(scenario: Scenario[Any], settings: Settings, *, quick: bool = False, folder: Path = RESULTS) -> Keys:
    """Measure a scenario and write its result; returns what was written. Raises ScenarioFailed."""
    described = machine.describe(settings.threads)
    keys = scenario.measure(settings)
    result: Keys = {
        "scenario": scenario.name, "format_version": FORMAT_VERSION, "quick": quick,
        "machine": described, "settings": settings.model_dump(mode="json"), **keys,
    }  # fmt: skip
    write(result, folder / f"{scenario.name}.json")
    if missing := [name for name in scenario.promised if name not in keys]:
        raise ScenarioFailed(f"scenario {scenario.name} did not measure what it promises: {missing}")
    if unclear := {name.rpartition(": ")[2] for name in figures(keys)} - scenario.directions.keys():
        raise ScenarioFailed(f"scenario {scenario.name} declares no direction of {', '.join(sorted(unclear))}")
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
    except (OSError, ValueError) as error:
        raise ScenarioFailed(f"{path} cannot be read: {error}; run `make bench-{path.stem}`") from error
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


Figure = tuple[float, tuple[float, float] | None]


def compare(before: Keys, after: Keys, tolerance: float = TOLERANCE) -> list[Verdict]:
    """A verdict on every figure that both results have.

    Worse or better: the intervals do not touch and the change is larger than `tolerance`. Unclear: the change is
    larger, but the intervals overlap or a result has too few rounds for one. Raises ScenarioFailed for results of
    different scenarios.
    """
    if before["scenario"] != after["scenario"]:
        raise ScenarioFailed(f"results of {before['scenario']} and {after['scenario']} cannot be compared")
    directions = find_scenario(before["scenario"]).directions

    def word(name: str, old: Figure, new: Figure) -> str:
        (one, bounds), (other, others) = old, new
        if abs(other - one) <= tolerance * abs(one):
            return "same"
        if bounds is None or others is None or (others[0] <= bounds[1] and bounds[0] <= others[1]):
            return "unclear"
        better = directions.get(name.rpartition(": ")[2], "none")
        return "changed" if better == "none" else "better" if (other > one) == (better == "more") else "worse"

    old, new = figures(before), figures(after)
    return [Verdict(n, old[n][0], new[n][0], word(n, old[n], new[n])) for n in old if n in new]


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
            about = [f"{row[name]} {unit}" for name, unit in ROW_IS_ABOUT.items() if name in row]
            found |= figures(row, f"{place}{', '.join(about)}: ")
    return found


def sheet(verdicts: list[Verdict]) -> Sheet:
    """The verdicts as a table."""
    rows = [(v.name, f"{v.before:.4g}", f"{v.after:.4g}", v.word) for v in verdicts]
    return Sheet("before and after", ("figure", "before", "after", "verdict"), rows)
