"""Malformed requests: each gets a status of the contract, nothing of another tenant changes, all goes on."""

from __future__ import annotations

import contextlib
import itertools
import socket
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import descriptor as d
from google.protobuf import message_factory
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from protos.memory.v1 import ingestion_pb2, knowledge_bases_pb2, models_pb2, operations_pb2, retrieval_pb2
from testing.encoders import HashEncoder, vector_of
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, running

NEVER = {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.CANCELLED,
}
METHODS = [
    method
    for module in (retrieval_pb2, ingestion_pb2, knowledge_bases_pb2, models_pb2, operations_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
FILL_EVERY, FEW = 50, 60
KEPT = [document(f"d{n}", f"Text {n}.") for n in range(5)]

# Requests: messages of any values, their bytes damaged

_NAMES = st.sampled_from(["kb", "kb", "kb", "", "other", "one/kept", "a/../b", "x" * 300, "\0", "k\u0301b"])
_VECTORS = st.sampled_from(
    [vector_of("Text 1.").tobytes(), vector_of("x").tobytes() * 3, b"\0" * 128, b"\xff" * 128, b"abc", b""]
)
_INTEGERS = st.sampled_from([0, 1, 2, 5, 100, 2**16, 2**31 - 1]) | st.integers(0, 2**31 - 1)


def _value(field: Any, depth: int) -> st.SearchStrategy[Any]:
    if field.type == d.FieldDescriptor.TYPE_MESSAGE:
        return messages(field.message_type, depth - 1)
    if field.type == d.FieldDescriptor.TYPE_STRING:
        return _NAMES if "name" in field.name or "knowledge_base" in field.name else st.text(max_size=40)
    if field.type == d.FieldDescriptor.TYPE_BYTES:
        return _VECTORS | st.binary(max_size=300)
    if field.cpp_type in (d.FieldDescriptor.CPPTYPE_FLOAT, d.FieldDescriptor.CPPTYPE_DOUBLE):
        return st.floats(width=32)
    return st.booleans() if field.cpp_type == d.FieldDescriptor.CPPTYPE_BOOL else _INTEGERS


@st.composite
def messages(draw: st.DrawFn, descriptor: Any, depth: int = 6) -> Any:
    """Any message of the type, each field there or not; messages within it at most so deep."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not draw(st.booleans()) or (depth == 0 and field.message_type is not None):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entries = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=20)
            getattr(message, field.name).update(draw(entries))
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(_value(field, depth), max_size=4)))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(_value(field, depth)))
        else:
            setattr(message, field.name, draw(_value(field, depth)))
    return message


_HEADER = st.tuples(
    st.sampled_from(["authorization", "x-request-id", "traceparent", "content-type", "x-m3"]),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=200),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Any, list[bytes], list[tuple[str, str]]]:
    """A method, the bytes of its requests, more than one where it takes a stream, and headers now and then."""
    method = draw(st.sampled_from(METHODS))
    count = draw(st.integers(1, 4)) if method.client_streaming else 1
    raw = [draw(messages(method.input_type)).SerializeToString() for _ in range(count)]
    damage = draw(st.sampled_from(["none", "none", "cut", "flip", "noise"]))
    place = draw(st.integers(0, len(raw[-1])))
    if damage == "cut":
        raw[-1] = raw[-1][:place]
    elif damage == "flip":
        raw[-1] = raw[-1][:place] + bytes([draw(st.integers(0, 255))]) + raw[-1][place + 1 :]
    elif damage == "noise":
        raw[-1] = draw(st.binary(max_size=400))
    return method, raw, draw(st.lists(_HEADER, max_size=3)) if draw(st.integers(0, 7)) == 0 else []


# What a connection may say: noise, another protocol, HTTP/2 with frames of any kind, length and flags

_FRAME = st.builds(
    lambda size, kind, flags, stream, body: (
        size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
    ),
    st.sampled_from([0, 4, 8, 100, 2**14, 2**24 - 1]) | st.integers(0, 200),
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 2**31 - 1, 2**32 - 1]),
    st.binary(max_size=200),
)
_BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
NOISE = (
    st.lists(_FRAME, max_size=6).map(lambda many: _BEGIN + b"".join(many))
    | st.sampled_from([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0", _BEGIN[:10]])
    | st.binary(max_size=500)
)


class Fuzzed(NamedTuple):
    """A service, one tenant who asks nonsense and another whose memories must stay."""

    port: int
    metrics_port: int
    attacker: str
    channel: grpc.Channel
    other: Client

    def send(self, method: Any, raw: list[bytes], headers: list[tuple[str, str]]) -> grpc.StatusCode:
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
            return error.code()
        return grpc.StatusCode.OK

    def check(self) -> None:
        """The other tenant finds what he stored, all of it and nothing else."""
        for kept in KEPT:
            assert self.other.hits("kept", kept.text, 1)[0].document_key == kept.key
        assert self.other.keys("kept") == [one.key for one in KEPT]
        assert self.other.names() == ["kept"]


@pytest.fixture(scope="module", params=["file", pytest.param("chdb", marks=pytest.mark.slow)])
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    folder = tmp_path_factory.mktemp("fuzzed")
    keys = folder / "keys.json"
    attacker, other = new_key(keys, {"*": "admin"}, "attacker"), new_key(keys, {"*": "admin"}, "one")
    values = {"store": f"{request.param}://{folder}/s", "keys": keys, "metrics_listen": "127.0.0.1:0"}
    with running(folder, HashEncoder(), **values) as (nobody, server):
        client = with_key(nobody.channel, other)
        client.ingest("kept", *KEPT)
        yield Fuzzed(server.port, server.metrics_port, attacker, nobody.channel, client)


def many(count: int) -> Any:
    """Every example is new: what is sought is a request that breaks the service, not the smallest one."""
    return settings(max_examples=count, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("count", [FEW, pytest.param(8000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_malformed_requests_are_refused_and_change_nothing_of_others(fuzzed: Fuzzed, count: int) -> None:
    asked = itertools.count()

    @many(count)
    @given(requests())
    def answered(request: tuple[Any, list[bytes], list[tuple[str, str]]]) -> None:
        if next(asked) % FILL_EVERY == 0:  # gives the attacker something to damage; he may have deleted it
            with_key(fuzzed.channel, fuzzed.attacker).ingest("kb", *KEPT)
        code = fuzzed.send(*request)
        assert code not in NEVER, f"{request[0].full_name}: {code}: {request[1]!r}"

    answered()
    fuzzed.check()


@pytest.mark.parametrize("count", [FEW, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_noise_on_the_socket_disturbs_nobody(fuzzed: Fuzzed, count: int) -> None:
    @many(count)
    @given(NOISE)
    def said(raw: bytes) -> None:
        for port in (fuzzed.port, fuzzed.metrics_port):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.settimeout(0.001)
                with contextlib.suppress(OSError):  # whatever the answer
                    connection.sendall(raw)
                    connection.recv(4096)

    said()
    fuzzed.check()
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{fuzzed.metrics_port}/metrics", timeout=60)
    assert b"memory_service_calls_total" in metrics.read()
