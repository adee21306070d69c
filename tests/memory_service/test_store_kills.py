"""kill -9 at random points of writing: nothing acknowledged is lost or changed, nothing is there twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memory_service.stores import open_store
from tests.memory_service.store_writer import KEYS, OTHER, version_of
from tests.memory_service.stored import require_whole

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4  # of each seed, one after the other on the same files

State = dict[str, int]
"""The version of each document; OTHER is there where the other knowledge base is."""


def after(state: State, step: dict[str, Any]) -> State:
    """What is stored after a step of the writer."""
    gone = {step["drop"]} if "drop" in step else set(step.get("delete", []))
    changed = state | dict(step.get("write", [])) | ({OTHER: 0} if "create" in step else {})
    return {key: version for key, version in changed.items() if key not in gone}


def said_until_killed(url: str, seed: str, after_s: float) -> list[Any]:
    """What a writer said that was killed `after_s` seconds after it had opened the store."""
    command = [sys.executable, "-m", "tests.memory_service.store_writer", url, seed]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        first = writer.stdout.readline()
        assert first, "the writer could not open the store"
        threading.Timer(after_s, writer.kill).start()
        return [json.loads(line) for line in writer.stdout if line.endswith("\n")]


def stored_of(url: str, candidates: list[State]) -> State:
    """Which of the candidates the store holds, all of it and nothing else."""
    with closing(open_store(url)) as store:
        base, *others = (store.knowledge_base(one.name) for one in store.knowledge_bases())
        require_whole(store, base)
        for other in others:  # with its document, if all of it was acknowledged
            require_whole(store, other)
            assert store.revision(other).memories or len(candidates) == 2
        found = {key: one.content_hash for key, one in store.versions(base, [f"d{n}" for n in range(KEYS)]).items()}
    for state in candidates:
        expected = {key: version_of(key, version) for key, version in state.items() if key != OTHER}
        if ({key: d.content_hash for key, d in expected.items()}, OTHER in state) == (found, bool(others)):
            return state
    raise AssertionError(f"neither before nor after the last step: {sorted(found)}, {others}")


def kill_again_and_again(url: str, seed: int) -> int:
    """Returns how many steps were acknowledged."""
    chance, state, acknowledged = random.Random(seed), State(), 0
    for kill in range(KILLS):
        candidates = [state]
        for line in said_until_killed(url, f"{seed}-{kill}", chance.uniform(0.01, 0.6)):
            done = line == "done"
            acknowledged += done
            candidates = candidates[-1:] if done else [candidates[0], after(candidates[0], line)]
        state = stored_of(url, candidates)
    return acknowledged


SLOW = [pytest.param(kind, seed, marks=pytest.mark.slow) for kind in ("file", "chdb") for seed in range(100, 120)]


@pytest.mark.parametrize(("kind", "seed"), [("file", 1), *SLOW])
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, kind: str, seed: int) -> None:
    acknowledged = kill_again_and_again(f"{kind}://{tmp_path}/store", seed)
    assert acknowledged or seed > 1
    print(f"{KILLS} kills, {acknowledged} acknowledged steps")
