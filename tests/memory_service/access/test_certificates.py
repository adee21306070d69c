"""Client certificates: an authority says who may connect, the key file alone what they may do."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from memory_service.access.keys import changing
from testing.certificates import Authority
from testing.encoders import HashEncoder
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, refused, running


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
