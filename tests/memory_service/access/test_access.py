"""API keys: scopes, tenants that cannot name each other, revocation while the service runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_service.access.authorization import OPERATOR, Access, Scope
from memory_service.access.keys import LOOK_AGAIN_S, KeyFile, KeyRing, changing
from memory_service.access.tls import Security
from memory_service.client.connection import Connection
from memory_service.ops.metrics import REGISTRY
from memory_service.settings import Settings
from protos.memory.v1 import ingestion_pb2, models_pb2
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, ingest_requests, refusal, running


@dataclass
class Guarded:
    """A service that checks keys."""

    nobody: Client
    keys: Path
    address: str

    def client(self, grants: dict[str, str], tenant: str = "") -> Client:
        secret = new_key(self.keys, grants, tenant)
        time.sleep(LOOK_AGAIN_S * 1.2)
        return with_key(self.nobody.channel, secret)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys.json"
    new_key(keys, {"*": "admin"})
    with running(folder / "store", HashEncoder(), keys=keys) as (client, server):
        yield Guarded(client, keys, f"127.0.0.1:{server.port}")


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    found = refusal(caught.value)
    return found.code, found.reason


def names(client: Client) -> list[str]:
    listed = client.bases.ListKnowledgeBases(kb_pb.ListKnowledgeBasesRequest(), timeout=60)
    return [base.name for base in listed.knowledge_bases]


def create(client: Client, name: str) -> str:
    request = kb_pb.CreateKnowledgeBaseRequest(name=name)
    return client.bases.CreateKnowledgeBase(request, timeout=60).knowledge_base.name


def drop(client: Client, name: str) -> None:
    client.bases.DeleteKnowledgeBase(kb_pb.DeleteKnowledgeBaseRequest(name=name), timeout=60)


NO_KEY = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
TOO_SMALL = (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_TOO_SMALL")
MISSING = (grpc.StatusCode.NOT_FOUND, "KNOWLEDGE_BASE_NOT_FOUND")


def test_without_a_key_nothing_is_answered_but_health(guarded: Guarded) -> None:
    nobody = guarded.nobody
    assert refused(lambda: nobody.models.Describe(models_pb2.DescribeRequest(), timeout=60)) == NO_KEY
    assert refused(lambda: names(nobody)) == NO_KEY
    assert refused(lambda: nobody.retrieve("default", vector_of("x")[None])) == NO_KEY
    assert refused(lambda: nobody.ingest("default", document("a", "A."))) == NO_KEY
    for wrong in ("m3_000000000000_secret", "m3__", "Bearer", "x"):
        assert refused(lambda wrong=wrong: names(with_key(nobody.channel, wrong))) == NO_KEY  # type: ignore[misc]
    health = health_pb2_grpc.HealthStub(nobody.channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert health.status == health_pb2.HealthCheckResponse.SERVING


def test_calls_by_made_up_names_leave_no_series_behind(guarded: Guarded) -> None:
    for name in ("/memory.v1.Ingestion/MadeUp", "/memory.v1.MadeUp", "/MadeUp"):
        with pytest.raises(grpc.RpcError) as caught:
            guarded.nobody.channel.unary_unary(name)(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert refused(lambda: names(guarded.nobody)) == NO_KEY
    told = generate_latest(REGISTRY).decode()
    assert "MadeUp" not in told
    assert 'code="UNAUTHENTICATED",method="/memory.v1.KnowledgeBases/ListKnowledgeBases"' in told


def test_the_key_of_the_commands_goes_with_calls_of_every_kind(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = new_key(guarded.keys, {"*": "admin"}, "kinds")
    time.sleep(LOOK_AGAIN_S * 1.2)
    create(with_key(guarded.nobody.channel, secret), "kb")
    monkeypatch.setenv("MEMORY_SERVICE_CLIENT_API_KEY", secret)
    with Connection().channel(guarded.address) as channel:
        client = Client(channel)
        assert names(client) == ["kb"]
        assert client.ingest("kb", document("a", "A."))[1].HasField("acknowledged")
        assert list(client.bases.ExportKnowledgeBase(kb_pb.ExportKnowledgeBaseRequest(name="kb"), timeout=60))


def test_each_scope_includes_those_below_it_and_no_more(guarded: Guarded) -> None:
    admin = guarded.client({"scoped": "admin"})
    writer = guarded.client({"scoped": "write"})
    reader = guarded.client({"scoped": "read"})
    assert create(admin, "scoped") == "scoped"
    assert writer.ingest("scoped", document("a", "A."), create=False)[1].HasField("acknowledged")
    for client in (admin, writer, reader):
        assert names(client) == ["scoped"]
        assert client.retrieve("scoped", vector_of("A.")[None]).results[0].hits[0].document_key == "a"
    assert refused(lambda: reader.ingest("scoped", document("b", "B."))) == TOO_SMALL
    delete = ingestion_pb2.DeleteRequest(knowledge_base="scoped", document_keys=["a"])
    assert refused(lambda: reader.ingestion.Delete(delete, timeout=60)) == TOO_SMALL
    assert refused(lambda: drop(writer, "scoped")) == TOO_SMALL
    assert refused(lambda: create(writer, "other")) == TOO_SMALL
    assert refused(lambda: create(admin, "other")) == TOO_SMALL
    # What a key has no scope on looks as what does not exist.
    assert refused(lambda: reader.retrieve("default", vector_of("x")[None])) == MISSING
    assert refused(lambda: reader.retrieve("nothing", vector_of("x")[None])) == MISSING
    drop(admin, "scoped")


def test_the_operator_sees_the_knowledge_bases_of_tenants_under_their_stored_names(guarded: Guarded) -> None:
    one, two = guarded.client({"*": "admin"}, "one"), guarded.client({"*": "admin"}, "two")
    assert create(one, "facts") == create(two, "facts") == "facts"
    operator = guarded.client({"*": "admin"})
    assert set(names(operator)) >= {"one/facts", "two/facts", "default"}
    drop(operator, "two/facts")
    assert (names(one), names(two)) == (["facts"], [])
    drop(one, "facts")


def test_a_key_is_revoked_while_the_service_runs_and_its_stream_ends(guarded: Guarded) -> None:
    secret = new_key(guarded.keys, {"*": "admin"}, "fired")
    time.sleep(LOOK_AGAIN_S * 1.2)
    client = with_key(guarded.nobody.channel, secret)
    create(client, "kb")

    def requests() -> Iterator[Any]:
        start, *items = ingest_requests("kb", [document(f"d{n}", f"Text {n}.") for n in range(200)])
        yield start
        yield items[0]
        time.sleep(LOOK_AGAIN_S * 1.2)
        with changing(guarded.keys) as file:
            file.with_revoked(secret.split("_")[1]).write(guarded.keys)
        time.sleep(LOOK_AGAIN_S * 1.2)
        yield items[1]

    assert refused(lambda: list(client.ingestion.Ingest(requests(), timeout=60))) == NO_KEY
    assert refused(lambda: names(client)) == NO_KEY


def test_a_damaged_key_file_changes_nothing_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = new_key(path, {"kb": "read"}, "t")
    ring = KeyRing(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    time.sleep(LOOK_AGAIN_S * 1.2)
    assert ring.access_of(f"Bearer {secret}").grants == {"kb": Scope.READ}
    with pytest.raises(CorruptFile, match="is no key file"):
        KeyRing(path)
    path.unlink()
    with pytest.raises(MissingFile, match="keys create"):
        KeyRing(path)


def test_the_key_file_keeps_no_secret_and_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = new_key(path, {"*": "admin"})
    assert secret.split("_", 2)[2] not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert KeyFile.read(path).keys[0].name == "test"
    with pytest.raises(InvalidInput, match="no key has the id"):
        KeyFile.read(path).with_revoked("nope")
    with pytest.raises(InvalidInput, match="owner"):
        KeyFile().with_new("x", "", {"kb": "owner"}, None)


@pytest.mark.parametrize("listen", ["0.0.0.0:7430", "[::]:7430", "service.example:7430", "10.1.2.3:0"])
def test_nobody_listens_beyond_the_machine_without_authentication(listen: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--insecure"):
        Security.of(Settings(listen=listen))
    Security.of(Settings(listen=listen, insecure=True))
    new_key(tmp_path / "keys.json", {"*": "read"})
    Security.of(Settings(listen=listen, keys=tmp_path / "keys.json"))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:7430", "localhost:7430", "unix:/tmp/s"])
def test_loopback_needs_no_keys(listen: str) -> None:
    Security.of(Settings(listen=listen))


NAMES = st.text("ab./", min_size=1, max_size=4)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    tenant=st.sampled_from(["a", "b", "a.b"]),
    other=st.sampled_from(["a", "b", "a.b"]),
    name=NAMES,
    seen=NAMES,
)
def test_no_name_of_one_tenant_leads_into_another(tenant: str, other: str, name: str, seen: str) -> None:
    everything = {"*": Scope.ADMIN}
    mine, theirs = Access("k", tenant, everything), Access("l", other, everything)
    assert mine.seen_name(mine.stored_name(name)) == name
    if tenant != other:
        assert mine.stored_name(seen) != theirs.stored_name(name)
        assert theirs.seen_name(mine.stored_name(name)) is None
    assert OPERATOR.seen_name(mine.stored_name(name)) == f"{tenant}/{name}"
