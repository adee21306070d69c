"""Client certificates: an authority says who may connect, the key file alone what they may do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from memory_model.errors import InvalidInput
from memory_service.access.keys import LOOK_AGAIN_S, KeyFile, changing
from memory_service.access.tls import Security
from memory_service.cli import app
from memory_service.settings import Settings
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from tests.edge_client.certificates import Authority
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, Refusal, document, ingest_requests, refusal, running


@dataclass
class Mutual:
    """A service that requires certificates, and the files of the test."""

    keys: Path
    client: Callable[..., AbstractContextManager[Client]]


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutual]:
    folder = tmp_path_factory.mktemp("mutual")
    authority, keys = Authority("authority"), folder / "keys.json"
    (folder / "ca.pem").write_bytes(authority.certificate)
    certificate, key = authority.issue("service", "127.0.0.1").files(folder, "service")
    new_key(keys, {"*": "admin"})
    settings = {
        "store": f"file://{folder}/store", "keys": keys, "tls_certificate": certificate, "tls_key": key,
        "tls_client_ca": folder / "ca.pem",
    }  # fmt: skip
    with running(folder, HashEncoder(), **settings) as (_, server):

        @contextmanager
        def client(name: str, *names: str) -> Iterator[Client]:
            pem = authority.issue(name, *names)
            credentials = grpc.ssl_channel_credentials(authority.certificate, pem.key, pem.certificate)
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.secure_channel(f"127.0.0.1:{server.port}", credentials, options) as channel:
                yield Client(channel)

        yield Mutual(keys, client)


def granted(mutual: Mutual, identity: str, tenant: str, **grants: str) -> None:
    with changing(mutual.keys) as file:
        file.with_certificate(identity, tenant, grants).write(mutual.keys)
    time.sleep(LOOK_AGAIN_S * 1.2)


def listed(client: Client) -> list[str]:
    answer = client.bases.ListKnowledgeBases(kb_pb.ListKnowledgeBasesRequest(), timeout=60)
    return [base.name for base in answer.knowledge_bases]


def refused(call: Callable[[], Any]) -> Refusal:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return refusal(caught.value)


def test_a_valid_certificate_without_a_grant_may_do_nothing(mutual: Mutual) -> None:
    with mutual.client("stranger", "stranger.example") as stranger:
        for call in (
            lambda: listed(stranger),
            lambda: stranger.ingest("default", document("a", "A.")),
            lambda: stranger.retrieve("default", vector_of("A.")[None]),
        ):
            error = refused(call)
            assert (error.code, error.reason) == (grpc.StatusCode.PERMISSION_DENIED, "CERTIFICATE_UNKNOWN")
            assert "stranger.example, stranger" in error.message
            assert "keys certificate" in error.message


@pytest.mark.parametrize(
    ("identity", "names"), [("phone", ()), ("phone.example", ("other.example", "phone.example"))]
)
def test_a_certificate_opens_what_its_identity_was_granted_and_no_more(
    mutual: Mutual, identity: str, names: tuple[str, ...]
) -> None:
    granted(mutual, "writer", "acme", handbook="admin")
    granted(mutual, identity, "acme", handbook="read")
    with mutual.client("writer") as writer, mutual.client("phone", *names) as phone:
        writer.ingest("handbook", document("a", "A."))
        assert listed(phone) == listed(writer) == ["handbook"]
        assert phone.retrieve("handbook", vector_of("A.")[None]).results[0].hits[0].document_key == "a"
        assert refused(lambda: phone.ingest("handbook", document("b", "B."))).reason == "SCOPE_TOO_SMALL"
        assert (
            refused(lambda: phone.retrieve("default", vector_of("A.")[None])).reason
            == "KNOWLEDGE_BASE_NOT_FOUND"
        )


def test_a_key_goes_before_the_certificate_and_a_wrong_one_is_not_excused_by_it(mutual: Mutual) -> None:
    granted(mutual, "laptop", "acme", handbook="read")
    secret = new_key(mutual.keys, {"*": "admin"}, "other")
    time.sleep(LOOK_AGAIN_S * 1.2)
    with mutual.client("laptop") as laptop:
        assert listed(with_key(laptop.channel, secret)) == []
        assert refused(lambda: listed(with_key(laptop.channel, "m3_x_y"))).reason == "UNAUTHENTICATED"


def test_what_a_certificate_opened_ends_with_its_grant_also_in_a_stream(mutual: Mutual) -> None:
    granted(mutual, "fired", "fired", kb="admin")

    def requests() -> Iterator[Any]:
        start, *items = ingest_requests("kb", [document(f"d{n}", f"Text {n}.") for n in range(2)])
        yield start
        yield items[0]
        time.sleep(LOOK_AGAIN_S * 1.2)
        granted(mutual, "fired", "")
        yield items[1]

    with mutual.client("fired") as fired:
        assert (
            refused(lambda: list(fired.ingestion.Ingest(requests(), timeout=60))).reason == "UNAUTHENTICATED"
        )
        assert refused(lambda: listed(fired)).reason == "CERTIFICATE_UNKNOWN"


def test_the_rate_of_a_tenant_holds_for_its_certificates_and_a_call_is_charged_once(mutual: Mutual) -> None:
    granted(mutual, "fast", "fast", kb="read")
    with changing(mutual.keys) as file:
        file.with_quota("fast", 0, 0, 5.0).write(mutual.keys)
    time.sleep(LOOK_AGAIN_S * 1.2)
    with mutual.client("fast") as fast:
        for _ in range(5):
            assert listed(fast) == []
        assert refused(lambda: [listed(fast) for _ in range(30)]).reason == "RATE_EXCEEDED"


def test_an_authority_without_a_key_file_lets_nobody_in_and_does_not_start(tmp_path: Path) -> None:
    authority = Authority("authority")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    certificate, key = authority.issue("service", "127.0.0.1").files(tmp_path, "service")
    for listen in ("127.0.0.1:0", "0.0.0.0:0"):
        with pytest.raises(InvalidInput, match="keys certificate"):
            Security.of(
                Settings(
                    listen=listen, insecure=True, tls_certificate=certificate, tls_key=key,
                    tls_client_ca=tmp_path / "ca.pem",
                )
            )  # fmt: skip


def test_the_command_adds_shows_and_removes_certificates(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    def keys(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["keys", *words, "--keys", str(path)], env={"COLUMNS": "200"})
        return done.exit_code, done.output

    assert keys("certificate", "phone.example", "--tenant", "acme", "--grant", "handbook:read")[0] == 0
    assert KeyFile.read(path).certificates[0].tenant == "acme"
    assert "phone.example" in keys("list")[1]
    assert keys("certificate", "phone.example")[0] == 0
    assert KeyFile.read(path).certificates == ()
    assert keys("certificate", "phone.example")[0] == 1
    assert keys("certificate", "x", "--grant", "handbook:owner")[0] == 1
