"""API keys: scopes, tenants that cannot name each other, revocation while the service runs; quotas."""

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest
from typer.testing import CliRunner

from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory_service.access.authorization import Scope
from memory_service.access.keys import KeyFile, KeyRing, changing
from memory_service.access.quotas import Quota, WriteGuard
from memory_service.access.tls import Security
from memory_service.cli import app
from memory_service.client.connection import Connection
from memory_service.errors import QuotaExceeded, Unauthenticated
from memory_service.settings import Settings
from memory_service.stores.opening import open_store
from memory_service.stores.store import KnowledgeBase, Store
from memory_service.telemetry.metrics import REGISTRY
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from protos.memory.v1 import models_pb2, operations_pb2
from protos.memory.v1.filter_pb2 import Filter
from testing.certificates import Authority
from testing.encoders import HashEncoder
from tests.memory_service import stored
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


def test_a_damaged_key_file_changes_nothing_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = new_key(path, {"kb": "read"}, "t")
    ring = KeyRing(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert ring.access_of(f"Bearer {secret}").grants == {"kb": Scope.READ}
    with pytest.raises(CorruptFile, match="is no key file"):
        KeyRing(path)
    path.unlink()
    with pytest.raises(MissingFile, match="keys create"):
        KeyRing(path)


def test_a_key_file_that_cannot_be_read_counts_once_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights and descriptors that are missing for a while change neither the time nor the size of the file."""
    path = tmp_path / "keys.json"
    secret = new_key(path, {"kb": "read"}, "t")
    ring, header, read_bytes = KeyRing(path), f"Bearer {secret}", Path.read_bytes
    with changing(path) as file:
        file.with_revoked(secret.split("_")[1]).write(path)

    def denied(of: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(of))

    monkeypatch.setattr(Path, "read_bytes", denied)
    with structlog.testing.capture_logs() as logs:
        assert [ring.access_of(header).tenant for _ in range(3)] == ["t"] * 3
    assert [log["event"] for log in logs] == ["keys_not_read_again"]
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(Unauthenticated):
        ring.access_of(header)


def test_a_change_keeps_the_owner_and_the_mode_of_the_file(tmp_path: Path) -> None:
    """The service may be another user than the one who revokes a key."""
    path, owner = tmp_path / "keys.json", 65534 if os.geteuid() == 0 else os.geteuid()
    new_key(path, {"*": "read"})
    os.chown(path, owner, -1)
    path.chmod(0o640)
    new_key(path, {"*": "admin"})
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (owner, 0o640)
    assert len(KeyFile.read(path).keys) == 2


def test_a_key_that_is_revoked_by_a_link_to_the_file_opens_nothing_more(tmp_path: Path) -> None:
    path, link = tmp_path / "etc" / "keys.json", tmp_path / "keys.json"
    secret = new_key(path, {"*": "read"})
    link.symlink_to(path)
    ring = KeyRing(path)
    key = ring.access_of(f"Bearer {secret}").key_id
    assert CliRunner().invoke(app, ["keys", "revoke", key, "--keys", str(link)]).exit_code == 0
    assert (link.is_symlink(), [one.name for one in tmp_path.iterdir() if one.is_file()]) == (True, ["keys.json"])
    with pytest.raises(Unauthenticated):
        ring.access_of(f"Bearer {secret}")


def test_a_limit_that_is_not_named_stays_as_it_is(tmp_path: Path) -> None:
    path, default = tmp_path / "keys.json", Quota(references=5, bytes=6, requests_per_s=7.0)
    new_key(path, {"*": "read"})

    def quota(*options: str) -> str:
        return CliRunner().invoke(app, ["keys", "quota", "acme", *options, "--keys", str(path)]).stdout

    assert (
        quota("--bytes", "0") == "acme: references: the service's default, bytes: no limit,"
        " calls per second: the service's default\n"
    )
    quota("--requests-per-s", "2.5")
    assert quota("--references", "2000000") == "acme: references: 2,000,000, bytes: no limit, calls per second: 2.5\n"
    ring = KeyRing(path)
    assert ring.quota_of("acme", default) == Quota(references=2_000_000, bytes=0, requests_per_s=2.5)
    assert ring.quota_of("rival", default) == default


def test_the_commands_change_a_file_that_keeps_no_secret_and_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    def keys(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["keys", *words, "--keys", str(path)], env={"COLUMNS": "200"})
        return done.exit_code, done.stdout

    code, secret = keys("create", "phones", "--grant", "notes:read", "--tenant", "acme", "--expires-days", "1")
    prefix, key_id, hidden = secret.strip().split("_", 2)
    assert (code, prefix, hidden in path.read_text()) == (0, "m3", False)
    assert path.stat().st_mode & 0o077 == 0
    assert KeyRing(path).access_of(f"Bearer {secret}").tenant == "acme"
    assert keys("certificate", "phone.example", "--tenant", "acme", "--grant", "handbook:read")[0] == 0
    assert keys("quota", "acme", "--references", "7")[0] == 0
    assert KeyFile.read(path).quotas["acme"].references == 7
    listed = keys("list")[1]
    assert all(part in listed for part in ("phones", "notes:read", "active", "phone.example", "handbook:read"))
    assert keys("revoke", key_id)[0] == keys("certificate", "phone.example")[0] == 0
    assert "revoked" in keys("list")[1]
    assert KeyFile.read(path).certificates == ()
    for wrong in (
        ("create", "x", "--grant", "notes:owner"),
        ("create", "x", "--grant", "notes"),
        ("revoke", "nope"),
        ("certificate", "phone.example"),
        ("quota", "a/b"),
        ("quota", "acme", "--requests-per-s", "inf"),
    ):
        assert keys(*wrong)[0] == 1, wrong
    assert keys("create", "x", "--grant", "notes:read", "--expires-days", "1000000000")[0] == 2
    assert KeyFile.read(path).quotas["acme"].references == 7
    path = path / "below-a-file"
    refused = CliRunner().invoke(app, ["keys", "revoke", "x", "--keys", str(path)])
    assert (refused.exit_code, f"error: {path.parent}: " in refused.stderr) == (1, True)


@pytest.mark.parametrize("listen", ["0.0.0.0:7430", "[::]:7430", "service.example:7430", "10.1.2.3:0"])
def test_nobody_listens_beyond_the_machine_without_authentication(listen: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--insecure"):
        Security.of(Settings(listen=listen))
    Security.of(Settings(listen=listen, insecure=True))
    new_key(tmp_path / "keys.json", {"*": "read"})
    Security.of(Settings(listen=listen, keys=tmp_path / "keys.json"))


def test_an_authority_of_clients_without_keys_is_refused() -> None:
    """Or every certificate that it signed would be the operator's."""
    files = dict.fromkeys(("tls_certificate", "tls_key", "tls_client_ca"), Path("x.pem"))
    with pytest.raises(InvalidInput, match="what they may do"):
        Security.of(Settings(listen="127.0.0.1:0", **files))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:7430", "localhost:7430", "unix:/tmp/s"])
def test_loopback_needs_no_keys(listen: str) -> None:
    Security.of(Settings(listen=listen))


LIMIT = 12


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(open_store(f"file://{tmp_path}")) as opened:
        yield opened


def guard_of(store: Store, now: list[float]) -> WriteGuard:
    return WriteGuard(store, lambda _: Quota(references=LIMIT), clock=lambda: now[0])


def write(guard: WriteGuard, store: Store, base: KnowledgeBase, key: str, count: int, version: int = 0) -> None:
    new = stored.document(key, *(f"{key} {version} {n}" for n in range(count)))
    with guard.writing(base, [new]) as admission:
        store.write(base, admission.documents)
    for error in admission.refused.values():
        raise error


def test_what_is_replaced_and_deleted_makes_room_again(store: Store) -> None:
    base, other = (store.create(f"acme/{name}", "", stored.IDENTITY) for name in "ab")
    guard = guard_of(store, [0.0])
    write(guard, store, base, "x", 8)
    with pytest.raises(QuotaExceeded):
        write(guard, store, other, "y", LIMIT - 7)
    write(guard, store, base, "x", 5, version=1)
    write(guard, store, other, "y", LIMIT - 5)
    store.delete(base, ["x"])
    guard.forget(base)
    write(guard, store, other, "z", 5)


def test_what_another_pod_writes_counts_within_a_minute(store: Store) -> None:
    now = [0.0]
    base = store.create("acme/a", "", stored.IDENTITY)
    here, there = guard_of(store, now), guard_of(store, now)
    write(here, store, base, "x", 2)
    write(there, store, base, "y", LIMIT - 3)
    now[0] += 61
    with pytest.raises(QuotaExceeded, match=f"{LIMIT - 1} references are stored"):
        write(here, store, base, "z", 2)
    write(here, store, base, "z", 1)


# Client certificates: an authority says who may connect, the key file alone what they may do.


@dataclass
class Mutual:
    """A service that requires certificates, and the files of the test."""

    keys: Path
    client: Callable[..., AbstractContextManager[Client]]

    def grant(self, identity: str, tenant: str, **grants: str) -> None:
        with changing(self.keys) as file:
            file.with_certificate(identity, tenant, grants).write(self.keys)


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutual]:
    folder = tmp_path_factory.mktemp("mutual")
    authority, keys = Authority("authority"), folder / "keys.json"
    (folder / "ca.pem").write_bytes(authority.certificate)
    certificate, key = authority.issue("service", "127.0.0.1").files(folder, "service")
    new_key(keys, {"*": "admin"})
    settings = {
        "store": f"file://{folder}/store",
        "keys": keys,
        "tls_certificate": certificate,
        "tls_key": key,
        "tls_client_ca": folder / "ca.pem",
    }
    with running(folder, HashEncoder(), **settings) as (_, server):

        @contextmanager
        def client(name: str, *names: str) -> Iterator[Client]:
            pem = authority.issue(name, *names)
            credentials = grpc.ssl_channel_credentials(authority.certificate, pem.key, pem.certificate)
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.secure_channel(f"127.0.0.1:{server.port}", credentials, options) as channel:
                yield Client(channel)

        yield Mutual(keys, client)


@pytest.mark.parametrize(("identity", "names"), [("phone", ()), ("phone.example", ("other.example", "phone.example"))])
def test_a_certificate_opens_what_it_was_granted_alone(mutual: Mutual, identity: str, names: tuple[str, ...]) -> None:
    with mutual.client("writer") as writer, mutual.client("phone", *names) as phone:
        for call in (phone.names, lambda: phone.hits("default", "A.")):
            error = refused(call)
            assert (error.code, error.reason) == (grpc.StatusCode.PERMISSION_DENIED, "CERTIFICATE_UNKNOWN")
            assert identity in error.message
            assert "keys certificate" in error.message
        mutual.grant("writer", "acme", handbook="admin")
        mutual.grant(identity, "acme", handbook="read")
        writer.ingest("handbook", document("a", "A."))
        assert phone.names() == writer.names() == ["handbook"]
        assert phone.keys("handbook") == ["a"]
        assert refused(lambda: phone.ingest("handbook", document("b", "B."))).reason == "SCOPE_TOO_SMALL"
        assert refused(lambda: phone.hits("default", "A.")).reason == "KNOWLEDGE_BASE_NOT_FOUND"
        mutual.grant(identity, "")
        assert refused(phone.names).reason == "CERTIFICATE_UNKNOWN"


def test_a_key_goes_before_the_certificate_and_a_wrong_one_is_not_excused_by_it(mutual: Mutual) -> None:
    mutual.grant("laptop", "acme", handbook="read")
    secret = new_key(mutual.keys, {"*": "admin"}, "other")
    with mutual.client("laptop") as laptop:
        assert with_key(laptop.channel, secret).names() == []
        assert refused(with_key(laptop.channel, "m3_x_y").names).reason == "UNAUTHENTICATED"


def test_the_rate_of_a_tenant_holds_for_its_certificates_and_a_call_is_charged_once(mutual: Mutual) -> None:
    mutual.grant("fast", "fast", kb="read")
    with changing(mutual.keys) as file:
        file.with_quota("fast", 0, 0, 5.0).write(mutual.keys)
    with mutual.client("fast") as fast:
        for _ in range(5):
            assert fast.names() == []
        assert refused(lambda: [fast.names() for _ in range(30)]).reason == "RATE_EXCEEDED"


TENANTS = ("one", "two")


def calls(client: Client, name: str) -> list[Callable[[], Any]]:
    """Everything that may be asked of a knowledge base by name; changes nothing in one that is not there."""
    upsert = pb.UpsertRequest(knowledge_base=name, document=document("d", "T."))
    operation = operations_pb2.GetOperationRequest(name=f"write-memories/{name}")
    operations = operations_pb2.ListOperationsRequest(knowledge_base=name)
    return [
        lambda: client.hits(name, "Text 0."),
        lambda: client.ingest(name, document("d", "T."), create=False),
        lambda: client.delete(name, "d1"),
        lambda: client.delete(name, filter=Filter(exists="a")),
        lambda: client.document(name, "d1"),
        lambda: client.ingestion.Upsert(upsert, timeout=60),
        lambda: client.listed(name),
        lambda: client.operations.GetOperation(operation, timeout=60),
        lambda: client.operations.ListOperations(operations, timeout=60),
        lambda: client.bases.GetKnowledgeBase(kb_pb.GetKnowledgeBaseRequest(name=name), timeout=60),
        lambda: client.statistics(name),
        lambda: list(client.export(name)),
        lambda: client.drop(name),
    ]


def refusal_of(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str, str]:
    found = refused(call)
    return found.code, found.reason, found.message


def finds(client: Client) -> dict[str, Counter[tuple[str, str]]]:
    """Key and text of all that a tenant finds, by knowledge base; what is listed and counted is the same."""
    names = sorted(client.names())
    operations = client.operations.ListOperations(operations_pb2.ListOperationsRequest(), timeout=60)
    assert sorted({one.knowledge_base for one in operations.operations}) == names
    found = {}
    for name in names:
        hits = client.hits(name, "any", 100, return_text=True)
        found[name] = Counter((hit.document_key, hit.text) for hit in hits)
        assert client.counts(name)[1] == found[name].total()
    return found


@pytest.mark.parametrize("engine", ["file", pytest.param("chdb", marks=pytest.mark.slow)])
def test_no_tenant_sees_counts_or_disturbs_the_other(tmp_path: Path, engine: str) -> None:
    keys = tmp_path / "keys.json"
    secrets = [new_key(keys, {"*": "admin"}, name) for name in TENANTS]
    with running(tmp_path, HashEncoder(), store=f"{engine}://{tmp_path}/store", keys=keys) as (nobody, _):
        mine, his = (with_key(nobody.channel, secret) for secret in secrets)
        for client, text in ((mine, "Mine."), (his, "His.")):
            answers = client.ingest("a", document("same", "The same."), document("own", text))[1:]
            assert {answer.acknowledged.outcome for answer in answers} == {pb.INGEST_OUTCOME_STORED}
        his.ingest("b", document("d", "D."))
        both = Counter([("same", "The same."), ("own", "His.")])
        assert finds(mine) == {"a": Counter([("same", "The same."), ("own", "Mine.")])}
        # The other's, by any spelling, is refused in the very words of what nobody has.
        for which, nobodys in enumerate(map(refusal_of, calls(mine, "nobodys"))):
            assert nobodys[:2] == (grpc.StatusCode.NOT_FOUND, "KNOWLEDGE_BASE_NOT_FOUND")
            for spelling in ("b", "two/b", "one/../two/b", "/two/b", "default"):
                told = refusal_of(calls(mine, spelling)[which])
                assert told == (*nobodys[:2], nobodys[2].replace("'nobodys'", f"'{spelling}'", 1))
        assert mine.delete("a", "same").documents_deleted == 1
        assert finds(his) == {"a": both, "b": Counter([("d", "D.")])}
        mine.drop("a")
        assert finds(mine) == {}
        assert finds(his) == {"a": both, "b": Counter([("d", "D.")])}
