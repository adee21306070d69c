from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from pydantic import SecretStr

from edge_client import errors
from edge_client.errors import RetrievalError
from edge_client.settings import EdgeSettings
from edge_client.wire.channel import BY_STATUS, UNAVAILABLE, call_error
from edge_client.wire.client import MemoryClient
from memory3.channel import DETAILS_KEY, KEEPALIVE_TIME_MS, ChannelSettings, channel_options, is_loopback, open_channel
from memory3.codec.payload import Identity
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory_service.api.models import PING_INTERVAL_MS
from protos.memory.v1 import models_pb2, models_pb2_grpc
from testing.certificates import Authority, Pem

KEY = "k-3f9a.secret"


class ApiKey(grpc.ServerInterceptor):
    """Refuses calls without the key, and notes what came."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def intercept_service(
        self, continuation: Callable[..., Any], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        self.seen.append(dict(details.invocation_metadata).get("authorization", ""))
        if self.seen[-1] == f"Bearer {KEY}":
            return continuation(details)

        def refuse(request: bytes, context: grpc.ServicerContext) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown API key")

        return grpc.unary_unary_rpc_method_handler(refuse)


class Models(models_pb2_grpc.ModelsServicer):
    def Describe(self, request: Any, context: Any) -> models_pb2.DescribeResponse:
        return models_pb2.DescribeResponse(service_version="test")


@contextmanager
def serving(
    pem: Pem | None = None, *, authority: bytes | None = None, interceptors: tuple[Any, ...] = ()
) -> Iterator[int]:
    """Models.Describe on a free port of this machine. authority: of the clients' certificates, which it then wants."""
    server = grpc.server(ThreadPoolExecutor(2), interceptors=interceptors)
    models_pb2_grpc.add_ModelsServicer_to_server(Models(), server)
    if pem is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = [(pem.key, pem.certificate)]
        credentials = grpc.ssl_server_credentials(pair, authority, authority is not None)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def describe(settings: ChannelSettings) -> str:
    client = MemoryClient(settings, "default", Identity("", "", ""), "", deadline_s=20)
    try:
        return str(client.describe().service_version)
    finally:
        client.close()


class Place:
    """A folder with an authority's file, `ca`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority, self.ca = folder, Authority("test authority"), folder / "ca.pem"
        self.ca.write_bytes(self.authority.certificate)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_tls_with_the_authority_s_file_and_another_name_where_that_is_said(place: Place) -> None:
    with serving(place.authority.issue("service", "localhost", "127.0.0.1")) as port:
        assert describe(ChannelSettings(f"127.0.0.1:{port}", ca=place.ca)) == "test"
        assert describe(ChannelSettings(f"dns:///localhost:{port}", ca=place.ca)) == "test"
    with serving(place.authority.issue("service", "memories.example")) as port:
        assert describe(ChannelSettings(f"127.0.0.1:{port}", ca=place.ca, server_name="memories.example")) == "test"


@pytest.mark.parametrize(
    ("names", "days", "ca", "said"),
    [
        (("127.0.0.1",), -1, "ours", "has expired"),
        (("memories.example",), 30, "ours", "for another name"),
        (("127.0.0.1",), 30, "another", "issuer is unknown"),
        (("127.0.0.1",), 30, "system", "issuer is unknown"),
    ],
)
def test_a_certificate_that_cannot_be_trusted_is_named(
    place: Place, names: tuple[str, ...], days: int, ca: str, said: str
) -> None:
    another = place.folder / "another.pem"
    another.write_bytes(Authority("another").certificate)
    file = {"ours": place.ca, "another": another, "system": None}[ca]
    pem = place.authority.issue("service", *names, days=days)
    with serving(pem) as port, pytest.raises(RetrievalError, match=said) as caught:
        describe(ChannelSettings(f"127.0.0.1:{port}", tls=True, ca=file, attempts=1))
    assert caught.value.reason == "CERTIFICATE"
    assert caught.value.help


def test_a_device_whose_clock_is_behind_is_told_to_set_it(place: Place) -> None:
    pem = place.authority.issue("service", "127.0.0.1", begins=1)
    with serving(pem) as port, pytest.raises(RetrievalError, match="not valid yet") as caught:
        describe(ChannelSettings(f"127.0.0.1:{port}", ca=place.ca, attempts=1))
    assert "clock" in caught.value.help


def test_tls_to_a_service_without_it_is_named_and_the_other_way_hinted_at(place: Place) -> None:
    with serving() as port, pytest.raises(RetrievalError, match="does not speak TLS"):
        describe(ChannelSettings(f"127.0.0.1:{port}", ca=place.ca))
    pem = place.authority.issue("service", "127.0.0.1")
    with serving(pem) as port, pytest.raises(RetrievalError, match="EDGE_CLIENT_TLS=1"):
        describe(ChannelSettings(f"127.0.0.1:{port}"))


def test_files_that_are_no_certificates_are_named(place: Place) -> None:
    certificate, key = place.authority.issue("device").files(place.folder, "device")
    _, other_key = place.authority.issue("other").files(place.folder, "other")
    nonsense = place.folder / "nonsense.pem"
    nonsense.write_text("nonsense")
    address = "127.0.0.1:1"
    with pytest.raises(MissingFile, match=r"missing\.pem"):
        open_channel(ChannelSettings(address, ca=place.folder / "missing.pem"))
    with pytest.raises(CorruptFile, match=r"nonsense\.pem"):
        open_channel(ChannelSettings(address, ca=nonsense))
    with pytest.raises(CorruptFile, match=r"other\.key"):
        open_channel(ChannelSettings(address, ca=place.ca, certificate=certificate, key=other_key))
    open_channel(ChannelSettings(address, ca=place.ca, certificate=certificate, key=key)).close()


def test_the_api_key_travels_with_every_call_and_a_wrong_one_is_named(place: Place) -> None:
    keys = ApiKey()
    with serving(place.authority.issue("service", "127.0.0.1"), interceptors=(keys,)) as port:
        assert describe(ChannelSettings(f"127.0.0.1:{port}", ca=place.ca, api_key=SecretStr(KEY))) == "test"
        assert keys.seen == [f"Bearer {KEY}"]
        for key in (SecretStr("wrong-key"), None):
            with pytest.raises(RetrievalError, match="EDGE_CLIENT_API_KEY") as caught:
                describe(ChannelSettings(f"127.0.0.1:{port}", ca=place.ca, api_key=key))
            assert caught.value.reason == "ACCESS_REFUSED"
            assert "wrong-key" not in str(caught.value)


def test_the_api_key_is_shown_nowhere() -> None:
    settings = EdgeSettings(service="127.0.0.1:1", api_key=SecretStr(KEY))
    client = MemoryClient(settings.channel, "default", Identity("", "", ""), "", deadline_s=0.1)
    with pytest.raises(RetrievalError) as caught:
        client.describe()
    client.close()
    shown = (repr(settings), str(settings), repr(settings.channel), str(caught.value), settings.model_dump_json())
    assert not any(KEY in text for text in shown)


@pytest.mark.parametrize("address", ["memories.example:7430", "dns:///memories.example:7430", "10.0.0.1:7430"])
def test_an_api_key_does_not_travel_in_plain_text_unless_that_is_said(address: str) -> None:
    key = SecretStr(KEY)
    with pytest.raises(InvalidInput, match="plain text") as caught:
        ChannelSettings(address, api_key=key)
    assert KEY not in str(caught.value)
    assert ChannelSettings(address, api_key=key, tls=True).encrypted
    assert not ChannelSettings(address, api_key=key, insecure=True).encrypted


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.8.8.8:1", True),
        ("dns:///localhost:7430", True),
        ("unix:/run/memory.sock", True),
        ("[::1]:1", True),
        ("10.0.0.1:7430", False),
        ("localhost.example:7430", False),
        ("dns://127.0.0.1/memories.example:7430", False),
    ],
)
def test_what_stays_on_this_machine_is_known(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_keepalive_agrees_with_what_the_service_permits() -> None:
    assert KEEPALIVE_TIME_MS >= 2 * PING_INTERVAL_MS
    assert dict(channel_options(ChannelSettings("h:1")))["grpc.keepalive_time_ms"] == KEEPALIVE_TIME_MS


@pytest.mark.parametrize(
    "wrong",
    [
        {"address": " "},
        {"certificate": Path("c.pem")},
        {"key": Path("k.pem")},
        {"server_name": "x"},
        {"attempts": 0},
        {"api_key": SecretStr("")},
        {"api_key": SecretStr("a\nb")},
    ],
)
def test_settings_that_contradict_themselves_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ChannelSettings(**{"address": "127.0.0.1:7430", **wrong})


class Failed(grpc.RpcError):
    """A call's error, as threads and asyncio have it."""

    def __init__(self, code: grpc.StatusCode, said: str = "because", details: Sequence[Any] = ()) -> None:
        self._code, self._said = code, said
        status = status_pb2.Status(code=code.value[0], message=said)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        self.raw = status.SerializeToString() if details else None

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._said

    def trailing_metadata(self) -> Any:
        return () if self.raw is None else ((DETAILS_KEY, self.raw),)


def test_every_status_has_a_reason_that_the_error_tree_lists() -> None:
    assert set(BY_STATUS) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    for code, reason in BY_STATUS.items():
        error = call_error(Failed(code), "host:1", 2.0)
        assert isinstance(error, errors.RetrievalError)
        assert (error.reason, error.unavailable) == (reason, code in UNAVAILABLE)
        assert reason in (errors.__doc__ or "")
        assert "host:1" in str(error)


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        (
            "connections to all backends failing; last error: UNKNOWN: ipv4:127.0.0.1:7430: Failed to connect to remote"
            " host: connect: Connection refused (111)",
            "nothing listens there",
        ),
        (
            "failed to connect to all addresses; last error: FAILED_PRECONDITION: unix:/nowhere: connect failed: addr:"
            " unix:/nowhere error: No such file or directory",
            "nothing listens there",
        ),
        (
            "errors resolving a.test:1: [address lookup failed for a.test:1: Domain name not found]",
            "its name is not known",
        ),
        ("failed to connect to all addresses; last error: UNAVAILABLE: ipv4:1.2.3.4:1: Out of luck", "Out of luck"),
        ("the service is stopping", "the service is stopping"),
    ],
)
def test_an_unreachable_service_is_named_without_what_grpc_tried(details: str, cause: str) -> None:
    error = call_error(Failed(grpc.StatusCode.UNAVAILABLE, details), "host:1", 2.0)
    assert str(error).startswith(f"no service at host:1 ({cause}): start it with ")


def test_reason_and_pause_come_from_the_details() -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
    details = [error_details_pb2.ErrorInfo(reason="FULL", domain="memory.v1"), retry]
    error = call_error(Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", details), "host:1", 2.0)
    assert error.unavailable
    assert (error.reason, error.retry_after_s) == ("FULL", 1.5)
    assert str(error) == "the service at host:1 refused (FULL): full"
