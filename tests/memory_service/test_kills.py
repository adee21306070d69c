"""kill -9 at random points of writing: nothing acknowledged is lost or changed, nothing is there twice."""

import json
import random
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memory_service.stores.opening import open_store
from testing.programs import ROOT
from tests.memory_service.killed_writer import Writer
from tests.memory_service.processes import client_of, service
from tests.memory_service.store_writer import KEYS, OTHER, version_of
from tests.memory_service.stored import require_whole

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


def kill_writer(url: str, seed: int) -> int:
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
    acknowledged = kill_writer(f"{kind}://{tmp_path}/store", seed)
    assert acknowledged or seed > 1
    print(f"{KILLS} kills, {acknowledged} acknowledged steps")


ENGINES, SLOW_SEEDS = ("file", "chdb"), 20


def kill_again_and_again(engine: str, folder: Path, seed: int, kills: int) -> Writer:
    """Returns what was acknowledged."""
    writer = Writer(seed)
    settings = {"engine": engine, "seconds_per_reference": 0.001, "MEMORY_SERVICE_MAX_K": "1000"}
    for kill in range(kills):
        with service(folder, **settings) as running, client_of(running) as client:  # type: ignore[arg-type]
            if kill:
                writer.check(client)
            writer.work_until_killed(running, client, 1.5)
    with service(folder, **settings) as running, client_of(running) as client:  # type: ignore[arg-type]
        writer.check(client)
        writer.ingest(client, writer.documents(40))
        assert all(len(versions) == 1 for versions in writer.versions.values())
        writer.check(client)
    return writer


@pytest.mark.parametrize(
    ("engine", "seed", "kills"),
    [
        ("file", 0, 2),
        *(pytest.param(e, 100 + n, 2, marks=pytest.mark.slow) for e in ENGINES for n in range(SLOW_SEEDS)),
    ],
)
def test_kill_9_loses_and_doubles_nothing_acknowledged(tmp_path: Path, engine: str, seed: int, kills: int) -> None:
    said = kill_again_and_again(engine, tmp_path, seed, kills)
    print(f"{engine}: {kills} kills, {said.acknowledged} acknowledged documents, {said.deleted} deletions")
