"""Several processes on one server store, stalled and killed: nothing acknowledged is lost, doubled or hidden.

MEMORY3_CHAOS_S says how long each of the slow runs takes (default 120 seconds), MEMORY3_CHAOS_RUNS how many there are.
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.memory.v1 import ingestion_pb2 as pb
from testing.clickhouse import PASSWORD, clickhouse_server
from tests.memory_service.chaos import HEAD, run
from tests.memory_service.processes import client_of, service
from tests.memory_service.running import Client, document

SECONDS = float(os.environ.get("MEMORY3_CHAOS_S", "120"))
RUNS = int(os.environ.get("MEMORY3_CHAOS_RUNS", "3"))
SLOW = [pytest.mark.slow, pytest.mark.timeout(7200)]
MINUTES = {"stall_s": 30.0, "timeout_s": 20.0, "sweep_after_s": 600.0, "kill_every_s": 60.0}
"""Stalls of up to a minute, twice as long as a client waits."""


@pytest.mark.parametrize(
    ("seed", "seconds", "more"),
    [
        (1, 4.0, {"pods": 2, "kill_every_s": 2.0, "stall_s": 0.5}),
        *(pytest.param(100 + n, SECONDS, {"server_kills": 2}, marks=SLOW) for n in range(RUNS)),
        pytest.param(7, 300.0, MINUTES, marks=SLOW),
    ],
)
def test_processes_that_are_stalled_and_killed_lose_double_and_hide_nothing(
    tmp_path: Path, seed: int, seconds: float, more: dict[str, Any]
) -> None:
    outcome = run(tmp_path, seed, seconds, **more)
    print(f"{HEAD}\n{outcome.row}")
    assert (outcome.lost, outcome.doubled, outcome.hidden) == ([], [], [])
    assert outcome.counts["acknowledged"]


def stored(client: Client) -> list[tuple[str, str]]:
    """Keys and texts of all references, in their order."""
    return sorted((hit.document_key, hit.text) for hit in client.hits("kb", "x", 50, return_text=True))


def test_clients_of_three_services_write_to_one_store_and_one_is_killed(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(clickhouse_server(tmp_path))
        settings = {"store": f"clickhouse://127.0.0.1:{port}/memories", "MEMORY_SERVICE_STORE_PASSWORD": PASSWORD}
        folders = [tmp_path / f"pod-{number}" for number in range(3)]
        for folder in folders:
            folder.mkdir()
        with ThreadPoolExecutor(3) as pool:
            running = list(pool.map(lambda folder: stack.enter_context(service(folder, **settings)), folders))
            clients = [stack.enter_context(client_of(one)) for one in running]

            def ingest(pod: int) -> list[pb.IngestResponse]:  # all create it, and write the same keys
                mine = [document(f"d{n}", f"Text {n} of {pod}.") for n in range(6)]
                return clients[pod].ingest("kb", *mine, document(f"own-{pod}", "Mine."))[1:]

            answers = [answer for said in pool.map(ingest, range(3)) for answer in said]
        assert all(answer.HasField("acknowledged") for answer in answers)
        running[2].process.kill()
        there = stored(clients[0])
        assert [key for key, _ in there] == sorted([*(f"d{n}" for n in range(6)), "own-0", "own-1", "own-2"])
        assert stored(clients[1]) == there
        clients[1].delete("kb", "d0", "d1")
        assert stored(clients[0]) == there[2:]
        clients[0].drop("kb")
        answers = []
        with contextlib.suppress(grpc.RpcError):  # once its list, a second old at most, has the drop
            answers = clients[1].ingest("kb", document("late", "Late."), create=False)
        assert not any(answer.HasField("acknowledged") for answer in answers)
        clients[1].ingest("kb", document("again", "Again."))
        assert [key for key, _ in stored(clients[0])] == ["again"]
