"""Results as files: `results/<scenario>.json`, and of each model the last one, `results/<model>/<scenario>.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.bench import machine
from deploy.bench.scenario import Keys, Scenario, ScenarioFailed, Settings

# Next to a module of that name mypy would take the folder for a package.
RESULTS = Path(__file__).with_name("results")
FORMAT_VERSION = 3


def measure(scenario: Scenario[Any], settings: Settings, *, quick: bool = False, folder: Path = RESULTS) -> Keys:
    """Measure a scenario and write its result; returns what was written. Raises ScenarioFailed.

    The result of a scenario `of_model` is written twice, the second time into a folder of the model's name.
    """
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
    file = f"{scenario.name}.json"
    write(result, folder / file)
    if model := model_of(scenario, result):
        write(result, folder / model / file)
    return result


def model_of(scenario: Scenario[Any], result: Mapping[str, Any]) -> str:
    """The model that a result is of, or "" where the scenario measures none."""
    return str(result.get("measured_model", result.get("model", ""))) if scenario.of_model else ""


def of_every_model(scenario: Scenario[Any], folder: Path = RESULTS) -> list[Keys]:
    """The last result of each model by name, or the scenario's only one; none where it was not measured."""
    file = f"{scenario.name}.json"
    paths = sorted(folder.glob(f"*/{file}")) or [folder / file]
    return [read(path) for path in paths if path.is_file()]


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
