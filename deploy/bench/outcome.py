"""Results as files, `results/<scenario>.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.bench import machine
from deploy.bench.scenario import Keys, Scenario, ScenarioFailed, Settings

# Next to a module of that name mypy would take the folder for a package.
RESULTS = Path(__file__).with_name("results")
FORMAT_VERSION = 3


def measure(scenario: Scenario[Any], settings: Settings, *, quick: bool = False, folder: Path = RESULTS) -> Keys:
    """Measure a scenario and write its result; returns what was written. Raises ScenarioFailed."""
    described = machine.describe(settings.threads)
    keys = scenario.measure(settings)
    result: Keys = {
        "scenario": scenario.name,
        "format_version": FORMAT_VERSION,
        "quick": quick,
        "machine": described,
        "settings": settings.model_dump(mode="json"),
        **keys,
    }
    write(result, folder / f"{scenario.name}.json")
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
