"""Several processes on one server store, stalled and killed: nothing acknowledged is lost, doubled or hidden."""

from __future__ import annotations

from pathlib import Path

from tests.memory_service.chaos import HEAD, run


def test_processes_that_are_stalled_and_killed_lose_double_and_hide_nothing(tmp_path: Path) -> None:
    outcome = run(tmp_path, seed=1, seconds=4.0, pods=2, kill_every_s=2.0, stall_s=0.5)
    print(f"{HEAD}\n{outcome.row}")
    assert (outcome.lost, outcome.doubled, outcome.hidden) == ([], [], [])
    assert outcome.counts["acknowledged"]
