"""Several processes on one port: all retrieve, one writes, and a caller cannot tell them apart."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator

import grpc
import psutil
import pytest

from memory_model.errors import InvalidInput
from memory_service.api.processes import require_free, require_shareable
from memory_service.errors import StoreUnavailable
from memory_service.settings import Settings
from tests.memory_service.encoders import vector_of
from tests.memory_service.processes import Service, service
from tests.memory_service.running import Client, document

CONNECTIONS = 12


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("processes")
    with service(folder, engine="file", MEMORY_SERVICE_PROCESSES="2") as running:
        _wait(lambda: len(_serving(running)) == 2)
        yield running


@contextlib.contextmanager
def clients(running: Service) -> Iterator[list[Client]]:
    """Each on a connection of its own, so that the kernel spreads them over the processes."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with contextlib.ExitStack() as stack:
        yield [
            Client(stack.enter_context(grpc.insecure_channel(running.address, options)))
            for _ in range(CONNECTIONS)
        ]


def _serving(running: Service) -> list[psutil.Process]:
    """Processes that listen on the service's port."""
    port = int(running.address.rpartition(":")[2])
    parent = psutil.Process(running.process.pid)
    found = []
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            if any(
                c.laddr.port == port and c.status == psutil.CONN_LISTEN
                for c in process.net_connections("tcp")
            ):
                found.append(process)
    return found


def _connected(running: Service) -> list[int]:
    port = int(running.address.rpartition(":")[2])
    return [
        sum(
            c.laddr.port == port and c.status == psutil.CONN_ESTABLISHED
            for c in process.net_connections("tcp")
        )
        for process in _serving(running)
    ]


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_one_connection_writes_every_other_finds_at_once(both: Service) -> None:
    with clients(both) as all_clients:
        for number, client in enumerate(all_clients):
            (started, acknowledged) = client.ingest(
                "facts", document(f"d{number}", f"Fact {number}.", f"T{number}")
            )
            assert started.HasField("started")
            assert acknowledged.HasField("acknowledged")
            query = vector_of(f"T{number}\nFact {number}.")[None]
            for other in all_clients:
                assert other.retrieve("facts", query).results[0].hits[0].document_key == f"d{number}"
        assert sum(count > 0 for count in _connected(both)) >= 2


def test_an_error_of_the_process_that_writes_reaches_the_caller_whole(both: Service) -> None:
    from protos.memory.v1 import knowledge_bases_pb2
    from tests.memory_service.running import refusal

    with clients(both) as all_clients:
        for client in all_clients:
            with pytest.raises(grpc.RpcError) as caught:
                client.bases.GetKnowledgeBase(
                    knowledge_bases_pb2.GetKnowledgeBaseRequest(name="nowhere"), timeout=60
                )
            error = refusal(caught.value)
            assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "KNOWLEDGE_BASE_NOT_FOUND")


def test_a_process_that_dies_is_started_again_and_all_end_with_the_first(both: Service) -> None:
    parent = psutil.Process(both.process.pid)
    victim = next(p for p in _serving(both) if p.pid != parent.pid)
    os.kill(victim.pid, signal.SIGKILL)
    _wait(lambda: len(_serving(both)) == 2 and victim.pid not in {p.pid for p in _serving(both)})
    with clients(both) as all_clients:
        for client in all_clients:
            assert client.retrieve("facts", vector_of("x")[None]).results[0].hits
    children = parent.children(recursive=True)
    both.process.terminate()
    assert both.process.wait(60) == 0
    _wait(
        lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"store": "chdb:///tmp/store"}, "one process"),
        ({"store": "file:///tmp/s", "listen": "unix:/tmp/s"}, "host:port"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(values: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        require_shareable(Settings(processes=2, **values))
    require_shareable(Settings(processes=1, **values))


def test_two_services_do_not_share_a_port_by_accident() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StoreUnavailable, match="the address is taken"):
            require_free(listen)
    require_free(listen)
