"""Two services of the same content: a device calls the first while it can, else the second, and returns."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from edge_client.errors import RetrievalError
from edge_client.settings import EdgeSettings
from edge_client.wire.client import MemoryClient
from memory3 import failover
from memory3.channel import ChannelSettings, open_channel
from memory3.codec.payload import Identity
from memory3.errors import InvalidInput
from memory3.failover import FailoverChannel
from protos.memory.v1 import models_pb2, models_pb2_grpc
from testing.certificates import Authority, Pem
from testing.encoders import HashEncoder, vector_of
from testing.tcp_proxy import TcpProxy
from tests.memory_service.running import document, running

READY, CONNECTING = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.CONNECTING
FAILING = grpc.ChannelConnectivity.TRANSIENT_FAILURE


class Fake:
    """A channel whose state a test sets, and a method of it that returns its name."""

    def __init__(self, name: str) -> None:
        self.name, self.closed = name, False

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool) -> None:
        self.become = callback

    def unsubscribe(self, callback: object) -> None:
        pass

    def unary_unary(self, *_: object) -> Any:
        return lambda request, timeout: (self.name, timeout)

    def close(self) -> None:
        self.closed = True


def test_a_call_goes_to_the_first_that_is_connected() -> None:
    one, two = Fake("one"), Fake("two")
    channel = FailoverChannel([one, two])  # type: ignore[list-item]
    call = channel.unary_unary("/method")
    one.become(CONNECTING)
    two.become(READY)
    began = time.monotonic()
    assert call(b"", timeout=0.2)[0] == "two"
    assert time.monotonic() - began >= 0.1  # the first might have come
    one.become(READY)
    assert call(b"", timeout=10)[0] == "one"
    one.become(CONNECTING)
    assert call(b"", timeout=1000)[0] == "two"  # it was connected once: nobody waits for it
    one.become(FAILING)
    assert call(b"", timeout=1000)[0] == "two"
    two.become(FAILING)
    assert call(b"", timeout=10)[0] == "one"  # whose error is the one to show
    channel.close()
    assert one.closed
    assert two.closed


def test_a_call_waits_for_the_first_connection_and_keeps_half_of_its_timeout() -> None:
    channel = FailoverChannel([Fake("one"), Fake("two")])  # type: ignore[list-item]
    began = time.monotonic()
    name, left = channel.unary_unary("/method")(b"", timeout=0.2)
    assert name == "one"
    assert time.monotonic() - began >= 0.1
    assert 0 <= left <= 0.1


def test_several_addresses_are_one_setting_and_each_is_checked() -> None:
    assert EdgeSettings(service="a.example:1,[::1]:2").channel.addresses == ("a.example:1", "[::1]:2")
    for wrong in ("a.example:1,", "a.example:1,b.example", "http://a:1,b:2"):
        with pytest.raises(InvalidInput, match="host:port"):
            EdgeSettings(service=wrong)
    with pytest.raises(InvalidInput, match="plain text"):
        EdgeSettings(service="127.0.0.1:1,b.example:2", api_key="k").channel  # noqa: B018


@contextlib.contextmanager
def two_services(folder: Path) -> Iterator[tuple[TcpProxy, TcpProxy]]:
    """Proxies in front of services whose only document is titled "one" and "two"."""
    with contextlib.ExitStack() as stack:
        proxies = []
        for name in ("one", "two"):
            client, server = stack.enter_context(running(folder / name, HashEncoder()))
            client.ingest("kb", document("d", "Text.", title=name))
            proxies.append(stack.enter_context(TcpProxy(f"127.0.0.1:{server.port}")))
        yield proxies[0], proxies[1]


def opened(*proxies: TcpProxy) -> MemoryClient:
    ids = HashEncoder().description.identity
    identity = Identity(ids.model_id, ids.codec_id, ids.memory_format_id)
    settings = ChannelSettings(",".join(proxy.address for proxy in proxies), attempts=1)
    return MemoryClient(settings, "kb", identity, ids.embedder_id, deadline_s=20)


def asked(client: MemoryClient) -> str:
    """The title that a retrieval finds."""
    (hits,) = client.retrieve(vector_of("Text.")[None], k=1).hits
    return hits[0].title


def test_a_device_fails_over_to_the_second_service_and_back(tmp_path: Path) -> None:
    with two_services(tmp_path) as (one, two), contextlib.closing(opened(one, two)) as client:
        assert asked(client) == "one"
        one.take_down()
        assert [asked(client) for _ in range(3)] == ["two"] * 3  # and no call failed
        one.mend()
        deadline = time.monotonic() + 60
        while asked(client) != "one":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        one.take_down()
        two.take_down()
        with pytest.raises(RetrievalError) as lost:
            asked(client)
        assert lost.value.reason == "UNREACHABLE"
        two.mend()
        while True:
            with contextlib.suppress(RetrievalError):
                assert asked(client) == "two"
                break
            assert time.monotonic() < deadline + 60


def test_the_first_call_finds_the_second_service_where_the_first_is_away(tmp_path: Path) -> None:
    with two_services(tmp_path) as (one, two):
        one.take_down()
        with contextlib.closing(opened(one, two)) as client:
            assert asked(client) == "two"


def test_a_service_that_does_not_answer_costs_one_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(failover.AVOIDED_S, grpc.StatusCode.DEADLINE_EXCEEDED, 1.5)
    with two_services(tmp_path) as (one, two), contextlib.closing(opened(one, two)) as client:
        assert asked(client) == "one"
        one.slow_down()
        with pytest.raises(RetrievalError) as late:
            client.retrieve(vector_of("Text.")[None], k=1, timeout_s=0.5)
        assert late.value.reason == "DEADLINE_EXCEEDED"
        assert asked(client) == "two"
        one.mend()
        time.sleep(1.5)
        assert asked(client) == "one"


class Models(models_pb2_grpc.ModelsServicer):
    """Tells its name as its version."""

    def __init__(self, name: str) -> None:
        self.name = name

    def Describe(self, request: Any, context: Any) -> models_pb2.DescribeResponse:
        return models_pb2.DescribeResponse(service_version=self.name)


@contextlib.contextmanager
def serving(host: str, pem: Pem, authority: Authority) -> Iterator[tuple[str, grpc.Server]]:
    """A service with mTLS."""
    server = grpc.server(ThreadPoolExecutor(2))
    models_pb2_grpc.add_ModelsServicer_to_server(Models(host), server)
    pair = [(pem.key, pem.certificate)]
    credentials = grpc.ssl_server_credentials(pair, authority.certificate, require_client_auth=True)
    port = server.add_secure_port(f"{host}:0", credentials)
    server.start()
    yield f"{host}:{port}", server
    server.stop(None).wait()


def test_services_with_mutual_tls_on_ipv6_and_ipv4_each_show_their_own_certificate(tmp_path: Path) -> None:
    authority = Authority("authority")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    certificate, key = authority.issue("device").files(tmp_path, "device")
    six, four = authority.issue("six", "::1"), authority.issue("four", "127.0.0.1")
    with serving("[::1]", six, authority) as (first, server), serving("127.0.0.1", four, authority) as (second, _):
        settings = ChannelSettings(f"{first},{second}", ca=tmp_path / "ca.pem", certificate=certificate, key=key)
        with open_channel(settings) as channel:
            stub = models_pb2_grpc.ModelsStub(channel)
            assert stub.Describe(models_pb2.DescribeRequest(), timeout=30).service_version == "[::1]"
            server.stop(None).wait()
            deadline = time.monotonic() + 30
            while True:
                with contextlib.suppress(grpc.RpcError):
                    assert stub.Describe(models_pb2.DescribeRequest(), timeout=30).service_version == "127.0.0.1"
                    break
                assert time.monotonic() < deadline
