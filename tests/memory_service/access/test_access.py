"""API keys over the wire: their scopes, tenants that cannot name each other, revocation while the service runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest

from memory_service.access.keys import changing
from memory_service.client.connection import Connection
from memory_service.telemetry.metrics import REGISTRY
from protos.memory.v1 import models_pb2
from testing.encoders import HashEncoder
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, ingest_requests, refused, running


@dataclass
class Guarded:
    """A service that checks keys."""

    nobody: Client
    keys: Path
    address: str

    def client(self, grants: dict[str, str], tenant: str = "") -> Client:
        return with_key(self.nobody.channel, new_key(self.keys, grants, tenant))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys.json"
    new_key(keys, {"*": "admin"})
    with running(folder / "store", HashEncoder(), keys=keys) as (client, server):
        yield Guarded(client, keys, f"127.0.0.1:{server.port}")


def why(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    found = refused(call)
    return found.code, found.reason


NO_KEY = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
TOO_SMALL = (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_TOO_SMALL")
MISSING = (grpc.StatusCode.NOT_FOUND, "KNOWLEDGE_BASE_NOT_FOUND")


def test_without_a_key_nothing_is_answered_but_health_and_made_up_calls_leave_no_series(guarded: Guarded) -> None:
    nobody = guarded.nobody
    assert why(lambda: nobody.models.Describe(models_pb2.DescribeRequest(), timeout=60)) == NO_KEY
    assert why(lambda: nobody.hits("default", "x")) == NO_KEY
    assert why(lambda: nobody.ingest("default", document("a", "A."))) == NO_KEY
    for wrong in ("m3_000000000000_secret", "m3__", "Bearer", "x"):
        assert why(with_key(nobody.channel, wrong).names) == NO_KEY
    health = health_pb2_grpc.HealthStub(nobody.channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    for name in ("/memory.v1.Ingestion/MadeUp", "/MadeUp"):
        with pytest.raises(grpc.RpcError) as caught:
            nobody.channel.unary_unary(name)(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    told = generate_latest(REGISTRY).decode()
    assert "MadeUp" not in told
    assert 'code="UNAUTHENTICATED",method="/memory.v1.KnowledgeBases/ListKnowledgeBases"' in told


def test_the_key_of_the_commands_goes_with_every_call(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_SERVICE_CLIENT_API_KEY", new_key(guarded.keys, {"*": "admin"}, "kinds"))
    with Connection().channel(guarded.address) as channel:
        client = Client(channel)
        assert client.create("kb") == "kb"
        assert client.ingest("kb", document("a", "A."))[1].HasField("acknowledged")
        assert list(client.export("kb"))


def test_each_scope_includes_those_below_it_and_no_more(guarded: Guarded) -> None:
    admin, writer, reader = (guarded.client({"scoped": scope}) for scope in ("admin", "write", "read"))
    assert admin.create("scoped") == "scoped"
    assert writer.ingest("scoped", document("a", "A."), create=False)[1].HasField("acknowledged")
    for client in (admin, writer, reader):
        assert client.names() == ["scoped"]
        assert client.keys("scoped") == ["a"]
    assert why(lambda: reader.ingest("scoped", document("b", "B."))) == TOO_SMALL
    assert why(lambda: reader.delete("scoped", "a")) == TOO_SMALL
    assert why(lambda: writer.drop("scoped")) == TOO_SMALL
    assert why(lambda: admin.create("other")) == TOO_SMALL
    # What a key has no scope on looks as what does not exist.
    assert why(lambda: reader.hits("default", "x")) == why(lambda: reader.hits("nothing", "x")) == MISSING
    admin.drop("scoped")


def test_the_operator_sees_the_knowledge_bases_of_tenants_under_their_stored_names(guarded: Guarded) -> None:
    one, two = guarded.client({"*": "admin"}, "one"), guarded.client({"*": "admin"}, "two")
    assert one.create("facts") == two.create("facts") == "facts"
    operator = guarded.client({"*": "admin"})
    assert set(operator.names()) >= {"one/facts", "two/facts", "default"}
    operator.drop("two/facts")
    assert (one.names(), two.names()) == (["facts"], [])


def test_a_key_is_revoked_while_the_service_runs_and_its_stream_ends(guarded: Guarded) -> None:
    secret = new_key(guarded.keys, {"*": "admin"}, "fired")
    client = with_key(guarded.nobody.channel, secret)
    client.create("kb")

    def requests() -> Iterator[Any]:
        start, *items = ingest_requests("kb", [document(f"d{n}", f"Text {n}.") for n in range(200)])
        yield start
        yield items[0]
        with changing(guarded.keys) as file:
            file.with_revoked(secret.split("_")[1]).write(guarded.keys)
        yield items[1]

    assert why(lambda: list(client.ingestion.Ingest(requests(), timeout=60))) == NO_KEY
    assert why(client.names) == NO_KEY
