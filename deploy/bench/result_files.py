"""Results as files, `results/<name>.json`: the scenario's keys beside the machine and the settings they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.bench import machine, power
from deploy.bench.scenario import Keys, ScenarioFailed
from deploy.bench.scenario_file import Plan

RESULTS = Path(__file__).with_name("results")
FORMAT_VERSION = 2


def measure(plan: Plan, folder: Path = RESULTS) -> Keys:
    """Carry out a plan and write its result; returns what was written. Raises ScenarioFailed.

    On a Jetson, power, clocks and temperatures are recorded all the while (`deploy.bench.power`).
    """
    described = machine.describe(plan.settings.threads)
    with power.recording() as recorded:
        keys = plan.scenario.measure(plan.settings)
    if missing := [name for name in plan.scenario.promised if name not in keys]:
        raise ScenarioFailed(f"scenario {plan.scenario.name} did not measure what it promises: {missing}")
    result: Keys = {
        "scenario": plan.scenario.name, "name": plan.name, "format_version": FORMAT_VERSION, "quick": plan.quick,
        "machine": {**described, **recorded}, "settings": plan.settings.model_dump(mode="json"), **keys,
    }  # fmt: skip
    write(result, folder / f"{plan.name}.json")
    return result


def write(result: Keys, path: Path) -> None:
    """To a temporary name first, so that a result is whole or not there. NaN is refused: nobody can compare it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def read(path: Path) -> dict[str, Any]:
    """A result; raises ScenarioFailed for a file that is none."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ScenarioFailed(f"no result at {path}: run `make bench-{path.stem}`") from None
    except (OSError, ValueError) as error:
        raise ScenarioFailed(f"{path} cannot be read: {error}") from error
    if not isinstance(result, dict) or result.get("format_version") != FORMAT_VERSION:
        raise ScenarioFailed(f"{path} is no result of this version: run its scenario again")
    return result


def read_all(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """All results of a folder by name, in alphabetical order."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}
