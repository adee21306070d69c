"""Malformed requests: each gets a status of the contract, nothing of another tenant changes, all goes on."""

from __future__ import annotations

import itertools
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from protos.memory.v1 import knowledge_bases_pb2
from tests.memory_service.api.fuzzing import frames, requests, say
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, running

NEVER = {
    grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.CANCELLED,
}  # fmt: skip
FILL_EVERY = 50
KEPT = [document(f"d{n}", f"Text {n}.") for n in range(5)]


@dataclass
class Fuzzed:
    """A service, one tenant who asks nonsense and another whose memories must stay.

    few: how many requests `make test` can afford.
    """

    port: int
    metrics_port: int
    attacker: str
    channel: grpc.Channel
    other: Client
    few: int
    codes: Counter[str] = field(default_factory=Counter)

    def send(self, method: Any, raw: list[bytes], headers: list[tuple[str, str | bytes]]) -> grpc.StatusCode:
        path = f"/{method.containing_service.full_name}/{method.name}"
        metadata = (("authorization", f"Bearer {self.attacker}"), *headers)
        try:
            if method.client_streaming:
                list(self.channel.stream_stream(path)(iter(raw), timeout=60, metadata=metadata))
            elif method.server_streaming:
                list(self.channel.unary_stream(path)(raw[0], timeout=60, metadata=metadata))
            else:
                self.channel.unary_unary(path)(raw[0], timeout=60, metadata=metadata)
        except grpc.RpcError as error:
            self.codes[error.code().name] += 1
            return error.code()
        self.codes["OK"] += 1
        return grpc.StatusCode.OK

    def fill(self) -> None:
        """Gives the attacker something to damage; he may have deleted it."""
        with_key(self.channel, self.attacker).ingest("kb", *KEPT)

    def check(self) -> None:
        """The other tenant finds what he stored, all of it and nothing else."""
        for kept in KEPT:
            hits = self.other.retrieve("kept", vector_of(kept.text)[None], k=50).results[0].hits
            assert hits[0].document_key == kept.key
            assert sorted(hit.document_key for hit in hits) == [one.key for one in KEPT]
        listed = self.other.bases.ListKnowledgeBases(
            knowledge_bases_pb2.ListKnowledgeBasesRequest(), timeout=60
        )
        assert [base.name for base in listed.knowledge_bases] == ["kept"]


@pytest.fixture(scope="module", params=["file", "chdb"])
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    folder = tmp_path_factory.mktemp("fuzzed")
    keys = folder / "keys.json"
    attacker, other = new_key(keys, {"*": "admin"}, "attacker"), new_key(keys, {"*": "admin"}, "one")
    engine = request.param
    values = {"store": f"{engine}://{folder}/s", "keys": keys, "metrics_listen": "127.0.0.1:0"}
    with running(folder, HashEncoder(), **values) as (nobody, server):
        client = with_key(nobody.channel, other)
        client.ingest("kept", *KEPT)
        few = 60 if engine == "file" else 15
        yield Fuzzed(server.port, server.metrics_port, attacker, nobody.channel, client, few)


def many(count: int) -> Any:
    """Every example is new: what is sought is a request that breaks the service, not the smallest one."""
    return settings(
        max_examples=count, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )


def ask(fuzzed: Fuzzed, count: int) -> None:
    asked = itertools.count()

    @many(count)
    @given(requests())
    def answered(request: tuple[Any, list[bytes], list[tuple[str, str | bytes]]]) -> None:
        if next(asked) % FILL_EVERY == 0:
            fuzzed.fill()
        code = fuzzed.send(*request)
        assert code not in NEVER, f"{request[0].full_name}: {code}: {request[1]!r}"

    answered()
    fuzzed.check()


def shout(fuzzed: Fuzzed, count: int) -> None:
    @many(count)
    @given(frames())
    def said(raw: bytes) -> None:
        say(fuzzed.port, raw)
        say(fuzzed.metrics_port, raw)

    said()
    fuzzed.check()
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{fuzzed.metrics_port}/metrics", timeout=60)
    assert b"memory_service_calls_total" in metrics.read()


def test_malformed_requests_are_refused_and_change_nothing_of_others(fuzzed: Fuzzed) -> None:
    ask(fuzzed, fuzzed.few)


def test_noise_on_the_socket_disturbs_nobody(fuzzed: Fuzzed) -> None:
    shout(fuzzed, fuzzed.few)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_of_them(fuzzed: Fuzzed) -> None:
    ask(fuzzed, 8000)
    shout(fuzzed, 2000)
    print(dict(fuzzed.codes))
