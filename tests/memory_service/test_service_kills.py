"""kill -9 of the service at random points of ingestion: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.memory_service.killed_writer import Writer
from tests.memory_service.processes import client_of, service

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
