"""kill -9 of `memory-service serve` while the real model writes memories: nothing acknowledged is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest

from deploy.processes import ServiceProcess
from memory_service.stores import open_store
from tests.memory_service.killed_writer import Writer
from tests.memory_service.processes import Service
from tests.memory_service.running import Client
from tests.memory_service.stored import require_whole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = 5


@contextmanager
def served(folder: Path, bundle: Path) -> Iterator[tuple[Service, Client]]:
    """The program as people start it, with the model and its bundle."""
    running = ServiceProcess.start(folder, bundle)
    try:
        with grpc.insecure_channel(running.address, [("grpc.max_receive_message_length", -1)]) as channel:
            yield Service(running.process, running.address, running.log), Client(channel)
    finally:
        running.kill()


def test_kill_9_while_the_model_writes_is_safe(tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_SERVICE_MAX_K", "1000")
    monkeypatch.setenv("MEMORY_SERVICE_INGEST_BATCH_REFERENCES", "8")
    writer = Writer(0)
    for kill in range(KILLS):
        with served(tmp_path, bundle) as (running, client):
            if kill:
                writer.check(client)
            writer.work_until_killed(running, client, 6.0, documents=60)
    with served(tmp_path, bundle) as (running, client):
        writer.check(client)
        running.process.terminate()
        assert running.process.wait(120) == 0
    with closing(open_store(f"chdb://{(tmp_path / 'store').resolve()}")) as store:
        require_whole(store, store.knowledge_base("kb"))
    print(f"{KILLS} kills, {writer.acknowledged} acknowledged documents, {writer.deleted} deletions")
