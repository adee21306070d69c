"""A store's server that is down, slow, or cut off in the middle of an answer: said with details, and nothing lost."""

from __future__ import annotations

import contextlib
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from memory_service.api.server import Server
from memory_service.errors import StoreUnavailable
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from protos.memory.v1 import retrieval_pb2
from tests.memory_service.api.test_operations import eventually, status
from tests.memory_service.broken_line import Line, line_to
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.running import Client, document, reason_of, refusal, running
from tests.memory_service.stored import PASSWORD, clickhouse_server

REFUSALS = {
    grpc.StatusCode.UNAVAILABLE: {"STORE_UNAVAILABLE"},
    grpc.StatusCode.DEADLINE_EXCEEDED: {"DEADLINE_EXCEEDED"},
}
SERVING, NOT_SERVING = 1, 2
CUTS = 2
SLOW_CUTS = 100


@dataclass
class Service:
    """A service whose store is at the end of the line, and what it acknowledged."""

    line: Line
    client: Client
    server: Server
    sent: int = 0
    acknowledged: dict[str, str] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    def write(self, count: int) -> int:
        """Sends documents; returns how many were acknowledged. Those that were not must say why."""
        texts = {f"d{n}": f"Text {n}." for n in range(self.sent, self.sent + count)}
        self.sent += count
        before = len(self.acknowledged)
        for answer in self.client.ingest("kb", *[document(key, text) for key, text in texts.items()])[1:]:
            if answer.HasField("acknowledged"):
                key = answer.acknowledged.document_key
                self.acknowledged[key] = texts[key]
            else:
                self.count(f"failed {reason_of(answer.failed)}")
                assert reason_of(answer.failed) == "STORE_UNAVAILABLE", answer
        return len(self.acknowledged) - before

    def ask(self, text: str, timeout_s: float | None = 60) -> grpc.StatusCode:
        """A retrieval; a refusal must have the details of the contract. Without a deadline it gets the service's."""
        request = retrieval_pb2.RetrieveRequest(
            knowledge_base="kb", query_vectors=vector_of(text).tobytes(), k=3
        )
        try:
            response = self.client.retrieval.Retrieve(request, timeout=timeout_s)
        except grpc.RpcError as error:
            refused = refusal(error)
        else:
            assert response.results[0].hits
            return grpc.StatusCode.OK
        assert refused.reason in REFUSALS.get(refused.code, set()), refused
        self.count(f"refused {refused.reason}")
        return refused.code

    def ready(self) -> int:
        """What /ready says."""
        try:
            url = f"http://127.0.0.1:{self.server.metrics_port}/ready"
            return int(urllib.request.urlopen(url, timeout=60).status)
        except urllib.error.HTTPError as error:
            return error.code

    def becomes(self, health: int) -> None:
        """Waits until health says so on both ports."""
        eventually(lambda: status(self.client) == health)
        assert status(self.client, "memory.v1.Models") == SERVING
        eventually(lambda: self.ready() == {SERVING: 200, NOT_SERVING: 503}[health])

    def count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def check(self) -> None:
        """What was acknowledged is there once, and nothing is there that belongs to no document."""
        store = self.server.store
        assert store is not None
        base = store.knowledge_base("kb")
        eventually(lambda: store.check(base) == [])  # a batch that broke off is undone without being asked to
        require_whole(store, base)
        hits = self.client.retrieve("kb", vector_of("x")[None], k=1000).results[0].hits
        found = [hit.document_key for hit in hits]
        assert len(found) == len(set(found))
        assert set(self.acknowledged) <= set(found)
        counts = self.client.bases.GetStatistics(kb_pb.GetStatisticsRequest(name="kb"), timeout=60)
        assert counts.reference_count == counts.document_count == len(found)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with clickhouse_server(tmp_path_factory.mktemp("engine")) as port:
        yield port


@contextlib.contextmanager
def behind_a_line(engine: int, folder: Path, **more: Any) -> Iterator[Service]:
    """A service with a dozen documents in a database of its own."""
    settings = {
        "store_password": PASSWORD, "default_deadline_s": 0.5, "health_interval_s": 0.3, "max_k": 1000,
        "metrics_listen": "127.0.0.1:0", "ingest_batch_references": 4, **more,
    }  # fmt: skip
    with line_to(engine) as line:
        store = f"clickhouse://127.0.0.1:{line.port}/{folder.name}"
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
    assert service.ask("Text 1.") == grpc.StatusCode.UNAVAILABLE
    assert service.write(3) == 0
    service.becomes(NOT_SERVING)
    service.line.mend()
    service.becomes(SERVING)
    assert service.ask("Text 1.") == grpc.StatusCode.OK
    assert service.write(3) == 3
    service.check()


def test_a_store_that_is_slow_meets_the_deadline(service: Service) -> None:
    service.line.slow_down(3600.0)
    assert service.ask("Text 1.", None) == grpc.StatusCode.DEADLINE_EXCEEDED
    service.becomes(NOT_SERVING)
    service.line.mend()
    service.becomes(SERVING)
    eventually(lambda: service.ask("Text 1.") == grpc.StatusCode.OK)
    assert service.write(3) == 3
    service.check()


@pytest.mark.slow
def test_a_store_that_says_nothing_is_given_up_and_used_again(
    engine: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with behind_a_line(engine, tmp_path_factory.mktemp("silent"), store_timeout_s=3.0) as service:
        for _ in range(5):
            service.line.slow_down(3600.0)
            assert service.ask("Text 1.") == grpc.StatusCode.UNAVAILABLE
            assert service.write(3) == 0
            service.becomes(NOT_SERVING)
            service.line.mend()
            service.becomes(SERVING)
            service.check()
            eventually(lambda: service.write(3) == 3)
        print(len(service.acknowledged), "acknowledged,", service.seen)


def cut_again_and_again(service: Service, times: int, seed: int) -> None:
    """Cuts the line in the middle of an answer, at a random place, while documents are written or asked for."""
    chance = random.Random(seed)
    for _ in range(times):
        before = service.line.cuts
        service.line.cut_after(chance.randrange(3000))
        while service.line.cuts == before:
            if chance.random() < 0.3:
                service.write(2)
            else:
                service.ask("Text 1.")
        service.line.mend()
        assert service.ask("Text 1.") == grpc.StatusCode.OK
    service.becomes(SERVING)
    service.check()
    assert service.write(3) == 3


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


def test_a_line_cut_in_the_middle_of_an_answer_loses_nothing(service: Service) -> None:
    cut_again_and_again(service, CUTS, 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_line_cut_again_and_again_loses_nothing(service: Service, seed: int) -> None:
    cut_again_and_again(service, SLOW_CUTS // 5, seed)
    print(len(service.acknowledged), "acknowledged,", service.seen)
