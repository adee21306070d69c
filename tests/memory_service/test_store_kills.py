"""kill -9 at random points of writing: nothing acknowledged is lost or changed, nothing is there twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from memory_service.stores import Query
from tests.memory_service.encoders import vector_of
from tests.memory_service.store_writer import KEYS, opened_store, version_of

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4  # of each seed, one after the other on the same files
SLOW_SEEDS = 20
Versions = dict[str, int]


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


def after(versions: Versions, batch: dict[str, Any]) -> Versions:
    """The documents after a batch."""
    written = dict(batch.get("write", []))
    gone = set(batch.get("delete", []))
    return {key: version for key, version in (versions | written).items() if key not in gone}


def what_is_there(kind: str, folder: Path, candidates: list[Versions]) -> Versions:
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
        for versions in candidates:
            expected = [version_of(key, version) for key, version in versions.items()]
            if {d.key: d.content_hash for d in expected} == found:
                wanted = sorted(r.memory_id for d in expected for r in d.references)
                assert ids == wanted
                assert near == wanted
                assert revision.memories == len(wanted)
                return versions
        raise AssertionError(f"neither before nor after the last batch: {sorted(found)}")
    finally:
        store.close()


def kill_again_and_again(kind: str, folder: Path, seed: int) -> int:
    """Returns how many batches were acknowledged."""
    chance = random.Random(seed)
    versions: Versions = {}
    acknowledged = 0
    for kill in range(KILLS):
        said = said_until_killed(kind, folder, f"{seed}-{kill}", chance.uniform(0.01, 0.6))
        pending = None
        for line in said[1:]:
            if line == "done":
                versions, pending = after(versions, pending), None
                acknowledged += 1
            else:
                pending = line
        candidates = [versions] if pending is None else [versions, after(versions, pending)]
        versions = what_is_there(kind, folder, candidates)
    return acknowledged


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, seed: int) -> None:
    kill_again_and_again("file", tmp_path / "store", seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "chdb"])
@pytest.mark.parametrize("seed", range(100, 100 + SLOW_SEEDS))
def test_nothing_acknowledged_is_lost_or_doubled_over_many_seeds(
    tmp_path: Path, kind: str, seed: int
) -> None:
    print(f"{KILLS} kills, {kill_again_and_again(kind, tmp_path / 'store', seed)} acknowledged batches")
