"""The number of threads that a decoder runs with is measured once, on a machine that does nothing else."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge_client.decoder import threads


@dataclass
class Graph:
    threads: int


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Four cores, of which more threads make a step faster; what other programs take of them, look by look, else 0."""
    shares: list[float] = []
    monkeypatch.setattr(threads, "physical_cores", lambda: 4)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(threads, "LOOK_S", 0.0)
    monkeypatch.setattr(threads, "step_ms", lambda graph: 10.0 / graph.threads)
    monkeypatch.setattr(threads, "others_since", lambda: lambda: shares.pop(0) if shares else 0.0)
    return shares


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file of a graph."""
    (tmp_path / "graph").touch()
    return tmp_path


def opened(folder: Path) -> list[int]:
    """Threads of every graph that is opened, the one that is used last."""
    counts: list[int] = []

    def graph(count: int) -> Any:
        counts.append(count)
        return Graph(count)

    threads.fastest(graph, folder / "graph", folder / "threads.json")
    return counts


def test_the_fastest_number_is_kept(others: list[float], place: Path) -> None:
    assert opened(place) == [1, 2, 4]
    assert list(json.loads((place / "threads.json").read_text()).values()) == [4]
    others.append(0.9)
    assert opened(place) == [4], "it is known, whatever else works"


@pytest.mark.parametrize(("taken", "left"), [(0.11, 4), (0.3, 3), (0.5, 2), (1.0, 1), (1.5, 1)])
def test_next_to_other_programs_a_graph_is_opened_once_with_the_cores_that_they_leave(
    others: list[float], place: Path, taken: float, left: int
) -> None:
    others.append(taken)
    assert opened(place) == [left]
    assert not (place / "threads.json").exists()


def test_what_was_measured_while_other_programs_began_to_work_is_not_kept(others: list[float], place: Path) -> None:
    others += [0.0, 0.2]
    assert opened(place) == [1, 2, 4]
    assert not (place / "threads.json").exists()


def test_the_share_of_others_is_what_this_process_did_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(100.0, 5.0), (103.0, 6.0)])
    times = iter([7.0, 9.0])
    monkeypatch.setattr(threads, "processor_s", lambda: next(looks))
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert threads.others_since()() == pytest.approx(0.5)


def test_the_time_of_this_process_is_part_of_all() -> None:
    worked_s, own_s = threads.processor_s()
    assert worked_s >= own_s >= 0
