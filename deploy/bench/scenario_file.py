"""Scenario files: YAML that names a scenario, the result's name and settings, checked before anything is measured.

scenario: decode            # deploy/bench/scenarios/decode.py measures it
name: decode-two-threads    # of the result; the scenario's own unless given
settings: {rounds: 11, threads: 2, target: "memory.example:7430"}
quick: {rounds: 2}          # instead, with --quick
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.bench.scenario import Scenario, ScenarioFailed, Settings

FOLDER = Path(__file__).with_name("scenarios")
ORDER = ("decode", "network", "rag", "shape", "codec", "step", "faults", "service", "ingest", "load")
"""Of the report; scenarios that are not named here follow by their names."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    scenario: str
    name: str = Field(default="", pattern=r"^[a-z0-9][a-z0-9-]*$|^$")
    settings: dict[str, Any] = {}
    quick: dict[str, Any] = {}


@dataclass(frozen=True)
class Plan:
    """What will be measured: a scenario, its checked settings, and the name of the result."""

    name: str
    scenario: Scenario[Any]
    settings: Settings
    quick: bool = False


def scenario_names() -> list[str]:
    """All scenarios that have a YAML file here, in the order of the report."""
    names = {path.stem for path in FOLDER.glob("*.yaml")}
    return [n for n in ORDER if n in names] + sorted(names - set(ORDER))


def find_scenario(name: str) -> Scenario[Any]:
    """The scenario of one file of `scenarios/`, - in its name being _; raises ScenarioFailed if there is none."""
    module = name.replace("-", "_")
    if not (FOLDER / f"{module}.py").is_file():
        raise ScenarioFailed(f"no scenario {name!r}: there are {', '.join(scenario_names())}")
    found = importlib.import_module(f"deploy.bench.scenarios.{module}").SCENARIO
    assert isinstance(found, Scenario)
    return found


def read_plan(
    given: str | Path, overrides: Mapping[str, Any] | None = None, *, quick: bool = False
) -> Plan:  # fmt: skip
    """The plan of a scenario's name or of a YAML file of anybody's, with settings that overrule the file's.

    Raises ScenarioFailed that names the file, the setting and what is wrong with it.
    """
    text = str(given)
    path = Path(text) if text.endswith((".yaml", ".yml")) else FOLDER / f"{text}.yaml"
    try:
        parsed = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(scenario_names())
        raise ScenarioFailed(f"no scenario {text!r}: give one of {known}, or a YAML file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ScenarioFailed(f"{path} cannot be read: {error}") from error
    try:
        file = _File.model_validate(parsed)
    except ValidationError as error:
        raise ScenarioFailed(f"{path}: {explained(error)}") from None
    scenario = find_scenario(file.scenario)
    chosen = {**file.settings, **(file.quick if quick else {}), **(overrides or {})}
    try:
        settings = scenario.settings.model_validate(chosen)
        if not quick:  # a mistake in the quick settings is told at once, too
            scenario.settings.model_validate({**file.settings, **file.quick})
    except ValidationError as error:
        raise ScenarioFailed(f"{path}, settings of {file.scenario}: {explained(error)}") from None
    return Plan(file.name or file.scenario, scenario, settings, quick)


def overrides_of(assignments: Sequence[str]) -> dict[str, Any]:
    """`rounds=3`, `rtt_ms=[0, 50]` as a mapping, values as YAML; raises ScenarioFailed for anything else."""
    overrides = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (name and equals):
            raise ScenarioFailed(f"--set takes name=value, not {assignment!r}")
        try:
            overrides[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ScenarioFailed(f"--set {name}: {error}") from None
    return overrides


def explained(error: ValidationError) -> str:
    """Every mistake in one line: where, what, and what was given."""
    return "; ".join(
        f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']} (given: {e['input']!r})"[:300]
        for e in error.errors()
    )
