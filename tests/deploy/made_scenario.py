"""A scenario of no cost for the harness's own tests, and results as it would give them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.bench.plots import drawing
from deploy.bench.result_files import FORMAT_VERSION
from deploy.bench.scenario import Keys, Scenario, Settings, Sheet, figure


def _sheets(result: Mapping[str, Any]) -> list[Sheet]:
    return [Sheet("made", ("what", "ratio"), [("a | b <i>", figure(result, "ratio"))], "Of nothing.")]


def _plot(result: Mapping[str, Any], path: Path) -> None:
    with drawing(path) as axes:
        axes.plot([0, 1], [0, result["ratio"]])


def made_scenario(**keys: Any) -> Scenario[Settings]:
    return Scenario("made", "Measures nothing.", Settings, lambda _: keys, ("ratio",), _sheets, _plot)


def made_result(name: str = "made", low: float = 0.95, high: float = 0.99, **keys: Any) -> Keys:
    machine = {
        "date": "2026-11-21T10:00:00+00:00", "commit": "0123", "cpu": "a processor", "cores": 2, "cores_usable": 2,
        "load_average": [0.1, 0.1, 0.1], "copy_gb_per_s": 10.0, "python": "3.11.7", "versions": {"numpy": "2.4"},
    }  # fmt: skip
    return {
        "scenario": "made", "name": name, "format_version": FORMAT_VERSION, "quick": True, "machine": machine,
        "settings": {"threads": 1, "rounds": 3}, "ratio": (low + high) / 2, "intervals": {"ratio": [low, high]}, **keys,
    }  # fmt: skip
