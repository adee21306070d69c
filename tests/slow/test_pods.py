"""Processes on one server store for minutes, with stalls of up to a minute, kills of processes and of the server.

MEMORY3_CHAOS_S says how long each of the runs takes (default 120 seconds), MEMORY3_CHAOS_RUNS how many there are.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.memory_service.chaos import HEAD, run

SECONDS = float(os.environ.get("MEMORY3_CHAOS_S", "120"))
RUNS = int(os.environ.get("MEMORY3_CHAOS_RUNS", "3"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.mark.parametrize("seed", range(100, 100 + RUNS))
def test_nothing_acknowledged_is_lost_doubled_or_hidden(tmp_path: Path, seed: int) -> None:
    outcome = run(tmp_path, seed, SECONDS, server_kills=2)
    print(f"\n{HEAD}\n{outcome.row}")
    assert (outcome.lost, outcome.doubled, outcome.hidden) == ([], [], [])


def test_stalls_of_a_minute_lose_nothing(tmp_path: Path) -> None:
    """Twice as long as a client waits."""
    outcome = run(tmp_path, 7, 300.0, stall_s=30.0, timeout_s=20.0, sweep_after_s=600.0, kill_every_s=60.0)
    print(f"\n{HEAD}\n{outcome.row}")
    assert (outcome.lost, outcome.doubled, outcome.hidden) == ([], [], [])
