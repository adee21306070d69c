"""The number of threads that a decoder runs with is measured once, on a machine that does nothing else."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from edge_client.decoder import threads


@dataclass
class Graph:
    threads: int


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Two cores, of which two threads make a step twice as fast; the list holds what others work between two looks."""
    others: list[float] = []
    looks = itertools.count()
    monkeypatch.setattr(threads, "physical_cores", lambda: 2)
    monkeypatch.setattr(threads, "step_ms", lambda graph: 10.0 / graph.threads)
    monkeypatch.setattr(threads, "processor_s", lambda: (sum(others) * (next(looks) % 2), 0.0))
    return others


def count(folder: Path) -> int:
    """Threads of a graph that is opened."""
    graph = threads.fastest(cast(Any, Graph), folder / "graph", folder / "threads.json")
    return cast(Graph, graph).threads


def test_the_fastest_number_is_kept(machine: list[float], tmp_path: Path) -> None:
    (tmp_path / "graph").touch()
    assert count(tmp_path) == 2
    assert list(json.loads((tmp_path / "threads.json").read_text()).values()) == [2]


def test_what_was_measured_next_to_other_programs_is_not_kept(machine: list[float], tmp_path: Path) -> None:
    (tmp_path / "graph").touch()
    machine.append(3600.0)
    assert count(tmp_path) == 2
    assert not (tmp_path / "threads.json").exists()


def test_the_time_of_this_process_is_part_of_all() -> None:
    worked_s, own_s = threads.processor_s()
    assert worked_s >= own_s >= 0
