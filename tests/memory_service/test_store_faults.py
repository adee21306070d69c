"""A store's server that is down, slow, or cut off in the middle of an answer: said with details, and nothing lost."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from memory_service.api.server import Server
from memory_service.errors import StoreUnavailable
from protos.memory.v1 import retrieval_pb2
from testing.clickhouse import PASSWORD, clickhouse_server
from testing.encoders import HashEncoder, vector_of
from testing.tcp_proxy import TcpProxy
from tests.memory_service.running import Client, document, eventually, reason_of, refusal, running, status
from tests.memory_service.stored import require_whole

REFUSALS = {grpc.StatusCode.UNAVAILABLE: "STORE_UNAVAILABLE", grpc.StatusCode.DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED"}
SERVING, NOT_SERVING = 1, 2


@dataclass
class Service:
    """A service whose store is at the end of the line, and the keys that it acknowledged."""

    line: TcpProxy
    client: Client
    server: Server
    sent: int = 0
    acknowledged: set[str] = field(default_factory=set)

    def write(self, count: int) -> int:
        """Sends documents; returns how many were acknowledged. Those that were not must say why."""
        before, first = len(self.acknowledged), self.sent
        self.sent += count
        documents = [document(f"d{n}", f"Text {n}.") for n in range(first, self.sent)]
        for answer in self.client.ingest("kb", *documents)[1:]:
            if answer.HasField("acknowledged"):
                self.acknowledged.add(answer.acknowledged.document_key)
            else:
                assert reason_of(answer.failed) == "STORE_UNAVAILABLE", answer
        return len(self.acknowledged) - before

    def ask(self, timeout_s: float | None = 60) -> grpc.StatusCode:
        """A retrieval; a refusal must have the details of the contract. Without a deadline it gets the service's."""
        vector = vector_of("Text 1.").tobytes()
        request = retrieval_pb2.RetrieveRequest(knowledge_base="kb", query_vectors=vector, k=3)
        try:
            response = self.client.retrieval.Retrieve(request, timeout=timeout_s)
        except grpc.RpcError as error:
            refused = refusal(error)
            assert refused.reason == REFUSALS.get(refused.code), refused
            return refused.code
        assert response.results[0].hits
        return grpc.StatusCode.OK

    def becomes(self, health: int) -> None:
        """Waits until health says so."""
        eventually(lambda: status(self.client) == health)
        assert status(self.client, "memory.v1.Models") == SERVING

    def mended(self) -> None:
        """The line is; what was acknowledged is there once, and nothing is there that belongs to no document."""
        self.line.mend()
        self.becomes(SERVING)
        eventually(lambda: self.ask() == grpc.StatusCode.OK)
        assert self.write(3) == 3
        store = self.server.store
        assert store is not None
        base = store.knowledge_base("kb")
        require_whole(store, base)
        assert self.acknowledged <= set(store.keys(base, "", after_key=None, count=1000))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with clickhouse_server(tmp_path_factory.mktemp("engine")) as port:
        yield port


@contextlib.contextmanager
def behind_a_line(engine: int, folder: Path, **more: Any) -> Iterator[Service]:
    """A service with a dozen documents in a database of its own."""
    settings = {
        "store_password": PASSWORD,
        "default_deadline_s": 0.5,
        "health_interval_s": 0.3,
        "max_k": 1000,
        "ingest_batch_references": 4,
        **more,
    }
    with TcpProxy(f"127.0.0.1:{engine}") as line:
        store = f"clickhouse://{line.address}/{folder.name}"
        with running(folder, HashEncoder(), store=store, **settings) as (client, server):
            made = Service(line, client, server)
            eventually(lambda: made.write(12) == 12)
            yield made


@pytest.fixture(scope="module")
def service(engine: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with behind_a_line(engine, tmp_path_factory.mktemp("service")) as made:
        yield made


def test_a_store_that_is_down_is_said_and_used_again_when_it_is_back(service: Service) -> None:
    service.becomes(SERVING)
    service.line.take_down()
    assert service.ask() == grpc.StatusCode.UNAVAILABLE
    assert service.write(3) == 0
    service.becomes(NOT_SERVING)
    service.mended()


def test_a_store_that_is_slow_meets_the_deadline(service: Service) -> None:
    service.line.slow_down()
    assert service.ask(None) == grpc.StatusCode.DEADLINE_EXCEEDED
    service.becomes(NOT_SERVING)
    service.mended()


def test_an_answer_that_broke_off_anywhere_is_never_taken_for_an_empty_one(service: Service) -> None:
    store = service.server.store
    assert store is not None
    base, keys = store.knowledge_base("kb"), list(service.acknowledged)
    whole, refused = store.versions(base, keys), 0
    for place in range(0, 1000, 37):
        before = service.line.cuts
        service.line.cut_after(place)
        while service.line.cuts == before:
            try:
                assert store.versions(base, keys) == whole
            except StoreUnavailable:
                refused += 1
    service.line.mend()
    assert refused  # where the head was cut the client asked again, where rows were it could not


@pytest.mark.parametrize("cuts", [2, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_line_cut_in_the_middle_of_an_answer_loses_nothing(service: Service, cuts: int) -> None:
    chance = random.Random(cuts)
    for _ in range(cuts):
        before = service.line.cuts
        service.line.cut_after(chance.randrange(3000))
        while service.line.cuts == before:
            if chance.random() < 0.3:
                service.write(2)
            else:
                service.ask()
        service.line.mend()
        assert service.ask() == grpc.StatusCode.OK
    service.mended()
