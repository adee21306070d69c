"""kill -9 at random points of writing: nothing acknowledged is lost or changed, nothing is there twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from memory_service.stores import Query, Store
from tests.memory_service.encoders import vector_of
from tests.memory_service.store_writer import KEYS, OTHER, opened_store, version_of

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4  # of each seed, one after the other on the same files
SLOW_SEEDS = 20


@dataclass(frozen=True)
class State:
    """What is in a store: the version of each document, and whether the other knowledge base is there."""

    versions: dict[str, int] = field(default_factory=dict)
    other: bool = False

    def after(self, step: dict[str, Any]) -> State:
        """What is in it after a step of the writer."""
        if "create" in step or "drop" in step:
            return State(self.versions, "create" in step)
        gone = set(step.get("delete", []))
        changed = self.versions | dict(step.get("write", []))
        return State({key: version for key, version in changed.items() if key not in gone}, self.other)


def said_until_killed(kind: str, folder: Path, seed: str, after_s: float) -> list[Any]:
    """What a writer said that was killed `after_s` seconds after it had opened the store."""
    command = [sys.executable, "-m", "tests.memory_service.store_writer", kind, str(folder), seed]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        first = writer.stdout.readline()
        assert first, "the writer could not open the store"
        threading.Timer(after_s, writer.kill).start()
        said = [first, *writer.stdout]
    return [json.loads(line) for line in said if line.endswith("\n")]


def what_is_there(kind: str, folder: Path, candidates: list[State]) -> State:
    """Which of the candidates the store holds, all of it and nothing else."""
    store = opened_store(kind, folder)
    try:
        base = store.knowledge_base("kb")
        assert base.problem == ""
        assert store.check(base, deep=True) == []
        found = {
            key: v.content_hash for key, v in store.versions(base, [f"d{n}" for n in range(KEYS)]).items()
        }
        ids, last = [], None
        while page := store.memories(base, after_id=last, count=500):
            ids += [memory.memory_id for memory in page]
            last = page[-1].memory_id
        query = Query(vector_of("any")[None], 1000)
        near = sorted(hit.memory_id for hit in store.retrieve(base, query).hits[0])
        revision = store.revision(base)
        other = other_is_there(store, finished=all(state.other for state in candidates))
        for state in candidates:
            expected = [version_of(key, version) for key, version in state.versions.items()]
            if ({d.key: d.content_hash for d in expected}, state.other) == (found, other):
                wanted = sorted(r.memory_id for d in expected for r in d.references)
                assert ids == wanted
                assert near == wanted
                assert revision.memories == len(wanted)
                return state
        raise AssertionError(f"neither before nor after the last step: {sorted(found)}, {other}")
    finally:
        store.close()


def other_is_there(store: Store, *, finished: bool) -> bool:
    """Whether the other knowledge base is there, sound; with its document, if all of it was acknowledged."""
    if OTHER not in [base.name for base in store.knowledge_bases()]:
        return False
    base = store.knowledge_base(OTHER)
    assert base.problem == ""
    assert store.check(base, deep=True) == []
    assert store.revision(base).memories in ((1,) if finished else (0, 1))
    return True


def kill_again_and_again(kind: str, folder: Path, seed: int) -> int:
    """Returns how many steps were acknowledged."""
    chance = random.Random(seed)
    state = State()
    acknowledged = 0
    for kill in range(KILLS):
        said = said_until_killed(kind, folder, f"{seed}-{kill}", chance.uniform(0.01, 0.6))
        pending = None
        for line in said[1:]:
            if line == "done":
                state, pending = state.after(pending), None
                acknowledged += 1
            else:
                pending = line
        candidates = [state] if pending is None else [state, state.after(pending)]
        state = what_is_there(kind, folder, candidates)
    return acknowledged


def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path) -> None:
    kill_again_and_again("file", tmp_path / "store", 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "chdb"])
@pytest.mark.parametrize("seed", range(100, 100 + SLOW_SEEDS))
def test_nothing_acknowledged_is_lost_or_doubled_over_many_seeds(
    tmp_path: Path, kind: str, seed: int
) -> None:
    print(f"{KILLS} kills, {kill_again_and_again(kind, tmp_path / 'store', seed)} acknowledged steps")
