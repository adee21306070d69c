"""Several processes on one server store, stalled and killed: nothing acknowledged is lost, doubled or hidden."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from tests.memory_service.chaos import HEAD, Outcome, run
from tests.memory_service.encoders import vector_of
from tests.memory_service.processes import Service, client_of, service
from tests.memory_service.running import Client, document, reason_of
from tests.memory_service.stored import PASSWORD, clickhouse_server

NOTHING = ([], [], [])


def violations(outcome: Outcome) -> tuple[list[str], list[str], list[str]]:
    return outcome.lost, outcome.doubled, outcome.hidden


def test_processes_that_are_stalled_and_killed_lose_double_and_hide_nothing(tmp_path: Path) -> None:
    outcome = run(tmp_path, seed=1, seconds=4.0, pods=2, kill_every_s=2.0, stall_s=0.5)
    print(f"{HEAD}\n{outcome.row}")
    assert violations(outcome) == NOTHING
    assert outcome.counts["acknowledged"]


@contextlib.contextmanager
def services(folder: Path, count: int) -> Iterator[list[Service]]:
    """Processes of the service on one server's store."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(clickhouse_server(folder))
        store = f"clickhouse://127.0.0.1:{port}/memories"
        folders = [folder / f"pod-{number}" for number in range(count)]
        for one in folders:
            one.mkdir()
        with ThreadPoolExecutor(count) as pool:
            begin = [
                pool.submit(
                    stack.enter_context, service(one, store=store, MEMORY_SERVICE_STORE_PASSWORD=PASSWORD)
                )
                for one in folders
            ]
            running = [one.result(300) for one in begin]
        yield running


def keys_of(client: Client, base: str) -> list[str]:
    """Of all references, in the order of keys."""
    return sorted(
        hit.document_key for hit in client.retrieve(base, vector_of("x")[None], k=50).results[0].hits
    )


def test_clients_of_three_services_write_to_one_store_and_one_is_killed(tmp_path: Path) -> None:
    with services(tmp_path, 3) as running, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client_of(one)) for one in running]
        with ThreadPoolExecutor(3) as pool:  # all create it, and write the same keys
            sent = [
                pool.submit(
                    client.ingest, "kb",
                    *[document(f"d{n}", f"Text {n} of {pod}.") for n in range(6)], document(f"own-{pod}", "Mine."),
                )
                for pod, client in enumerate(clients)
            ]  # fmt: skip
            answers = [answer for one in sent for answer in one.result(300)[1:]]
        assert [reason_of(answer.failed) for answer in answers if answer.HasField("failed")] == []
        running[2].process.kill()
        expected = sorted([*(f"d{n}" for n in range(6)), "own-0", "own-1", "own-2"])
        for client in clients[:2]:
            assert keys_of(client, "kb") == expected
        texts = [
            [
                client.ingestion.GetDocument(
                    pb.GetDocumentRequest(knowledge_base="kb", document_key=f"d{n}"), timeout=60
                )
                .references[0]
                .text
                for n in range(6)
            ]
            for client in clients[:2]
        ]
        assert texts[0] == texts[1]
        clients[1].ingestion.Delete(
            pb.DeleteRequest(knowledge_base="kb", document_keys=["d0", "d1"]), timeout=60
        )
        assert keys_of(clients[0], "kb") == expected[2:]
        clients[0].bases.DeleteKnowledgeBase(kb_pb.DeleteKnowledgeBaseRequest(name="kb"), timeout=60)
        answers = []
        with contextlib.suppress(grpc.RpcError):  # once its list, a second old at most, has the drop
            answers = clients[1].ingest("kb", document("late", "Late."), create=False)
        assert not any(answer.HasField("acknowledged") for answer in answers)
        clients[1].ingest("kb", document("again", "Again."))
        assert keys_of(clients[0], "kb") == ["again"]
