"""What a scenario is: settings with their defaults, a function that measures, tables of what it measured."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from deploy.bench.intervals import Interval
from deploy.default_bundle import bundle_of
from edge_client.settings import ADDRESS_PATTERN
from testing.programs import ROOT

BUILD = ROOT / "build" / "bench"
"""What scenarios keep from run to run: a store with memories, trained codecs."""
SCENARIOS = (
    "decode",
    "shape",
    "network",
    "rag",
    "local-server",
    "codec",
    "service",
    "ingest",
    "remember",
    "memory",
    "precision",
)
"""Files of `scenarios/`, in the order of the report."""
Keys = dict[str, Any]


class ScenarioFailed(Exception):
    """A scenario cannot measure; the message says what is missing and how to get it."""


class Settings(BaseModel):
    """Settings of every scenario; a scenario adds its own, with defaults, in a subclass. Unknown names are refused.

    rounds: of every variant, after `warm_up` rounds that are discarded; fewer than five give no intervals. threads:
    of the decoder and of its peers. bundle: folder of the edge bundle, relative to the repository; default: the one of
    the model that MEMORY3_MODEL names (`make bench-… MODEL=`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: int = Field(default=7, ge=1, le=10_000)
    warm_up: int = Field(default=1, ge=0, le=1000)
    threads: int = Field(default=1, ge=1, le=256)
    bundle: Path = Field(default_factory=lambda: bundle_of(), validate_default=True)

    @field_validator("bundle", "model", check_fields=False)
    @classmethod
    def _from_the_repository(cls, path: Path) -> Path:
        return ROOT / path


class TargetSettings(Settings):
    """Settings of scenarios in which a device asks a service; the others would measure without the one that is named.

    target: address of a running service; None starts one on loopback for the time of the measurement.
    """

    target: str | None = Field(default=None, pattern=ADDRESS_PATTERN)


@dataclass(frozen=True)
class Sheet:
    """A table of results, for the console and for the report. note: what is counted, in a sentence or two.

    The head of a column of figures ends with ↑ where more is better, with ↓ where less is.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


Chosen = TypeVar("Chosen", bound=Settings)


@dataclass(frozen=True)
class Scenario(Generic[Chosen]):
    """One file of `deploy/bench/scenarios/`.

    measure: does the work and returns keys; figures are plain numbers, their confidence intervals stand under
    `intervals` by the same names (`with_intervals`). sheets: tables of the keys. quick: settings of a run
    that only shows that it works. of_model: whether it measures one of the models, which the key `model` then
    names (or `measured_model`, where `model` is something else); its result is kept for every model.
    """

    name: str
    summary: str
    settings: type[Chosen]
    measure: Callable[[Chosen], Keys]
    sheets: Callable[[Mapping[str, Any]], list[Sheet]]
    quick: Mapping[str, Any] = field(default_factory=dict)
    of_model: bool = True

    def settings_of(self, assignments: Sequence[str] = (), *, quick: bool = False) -> Chosen:
        """The defaults, then the quick ones, then `name=value` with YAML values; raises ScenarioFailed."""
        given = dict(self.quick) if quick else {}
        for assignment in assignments:
            name, equals, value = assignment.partition("=")
            if not (name and equals):
                raise ScenarioFailed(f"--set takes name=value, not {assignment!r}")
            try:
                given[name.strip()] = yaml.safe_load(value)
            except yaml.YAMLError as error:
                raise ScenarioFailed(f"--set {name}: {error}") from None
        try:
            return self.settings.model_validate(given)
        except ValidationError as error:
            wrong = (f"{'.'.join(map(str, e['loc']))}: {e['msg']} (given: {e['input']!r})" for e in error.errors())
            raise ScenarioFailed(f"settings of {self.name}: {'; '.join(wrong)}") from None


def find_scenario(name: str) -> Scenario[Any]:
    """The scenario of a name; raises ScenarioFailed if there is none."""
    if name not in SCENARIOS:
        raise ScenarioFailed(f"no scenario {name!r}: there are {', '.join(SCENARIOS)}")
    found = importlib.import_module(f"deploy.bench.scenarios.{name.replace('-', '_')}").SCENARIO
    assert isinstance(found, Scenario)
    return found


def with_intervals(keys: Keys, **measured: Interval) -> Keys:
    """`keys` with the medians by name, and their bounds under `intervals`: None with too few rounds for any."""
    bounds = {
        name: None if i.low is None or i.high is None else [round_figure(i.low), round_figure(i.high)]
        for name, i in measured.items()
    }
    medians = {name: round_figure(i.value) for name, i in measured.items()}
    return {**keys, **medians, "intervals": {**keys.get("intervals", {}), **bounds}}


def round_figure(number: float) -> float:
    """Four significant digits: more is noise."""
    return float(f"{number:.4g}")


def figure(keys: Mapping[str, Any], name: str) -> str:
    """A key as text, with its interval if it has one; a dash if it was not measured."""
    value = keys.get(name)
    if value is None:
        return "–"
    bounds = keys.get("intervals", {}).get(name)
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{text} ({bounds[0]:.4g} to {bounds[1]:.4g})" if bounds else text


def subject(result: Mapping[str, Any]) -> str:
    """What was measured, for a table's title."""
    return (
        f"{result['model']}, {result['precision']} weights, {result['provider']} provider,"
        f" {result['threads']} thread{'s' * (result['threads'] != 1)}"
    )
