"""What a scenario is: settings that a YAML file fills, a function that measures, tables and a plot of its keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from deploy.bench.intervals import Interval
from deploy.bench.machine import ROOT

BUILD = ROOT / "build" / "bench"
"""What scenarios keep from run to run: a store with memories, trained codecs."""
ADDRESS = r"^(unix:.+|dns:.+|(\[[0-9a-fA-F:.]+\]|[^\s:/]+):\d{1,5})$"
Keys = dict[str, Any]


class ScenarioFailed(Exception):
    """A scenario cannot measure; the message says what is missing and how to get it."""


class Settings(BaseModel):
    """What every scenario can be told; a scenario adds its own fields in a subclass. Unknown names are refused.

    rounds: of every variant, after `warm_up` rounds that are thrown away. threads: of the decoder and of its
    peers. bundle: folder of the edge bundle, relative to the repository. target: address of a service that is
    there already; None starts one on loopback for the time of the measurement.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: int = Field(default=5, ge=1, le=10_000)
    warm_up: int = Field(default=1, ge=0, le=1000)
    threads: int = Field(default=1, ge=1, le=256)
    bundle: Path = Path("build/bundle")
    target: str | None = Field(default=None, pattern=ADDRESS)

    @field_validator("bundle")
    @classmethod
    def _from_the_repository(cls, path: Path) -> Path:
        return path if path.is_absolute() else ROOT / path


@dataclass(frozen=True)
class Sheet:
    """A table of results, for the console and for the report alike. note: what is counted, one sentence or two."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


Chosen = TypeVar("Chosen", bound=Settings)


@dataclass(frozen=True)
class Scenario(Generic[Chosen]):
    """One file of `deploy/bench/scenarios/`, with a YAML file of the same name for its usual settings.

    measure: does the work, returns keys; figures are plain numbers, their confidence intervals stand under
    `intervals` by the same names. promised: keys that a result must have. sheets: tables of the keys. plot:
    draws one SVG, None has no figure.
    """

    name: str
    summary: str
    settings: type[Chosen]
    measure: Callable[[Chosen], Keys]
    promised: Sequence[str]
    sheets: Callable[[Mapping[str, Any]], list[Sheet]]
    plot: Callable[[Mapping[str, Any], Path], None] | None = None


def with_intervals(keys: Keys, **measured: Interval) -> Keys:
    """`keys` with the medians by name, and their bounds under `intervals`."""
    bounds = {name: [round_figure(i.low), round_figure(i.high)] for name, i in measured.items()}
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
