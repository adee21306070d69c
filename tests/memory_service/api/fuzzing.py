"""Requests that nobody should send: messages of any values, their bytes damaged, and what is no HTTP/2 at all."""

from __future__ import annotations

import socket
from typing import Any

from google.protobuf import descriptor as d
from google.protobuf import message_factory
from hypothesis import strategies as st

from protos.memory.v1 import ingestion_pb2, knowledge_bases_pb2, models_pb2, operations_pb2, retrieval_pb2
from tests.memory_service.encoders import vector_of

METHODS = [
    method
    for module in (retrieval_pb2, ingestion_pb2, knowledge_bases_pb2, models_pb2, operations_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
_NAMES = st.sampled_from(["kb", "kb", "kb", "", "other", "one/kept", "a/../b", "x" * 300, "\0", "k\u0301b"])
_VECTORS = st.sampled_from([
    vector_of("Text 1.").tobytes(), vector_of("x").tobytes() * 3, b"\0" * 128, b"\xff" * 128, b"abc", b"",
])  # fmt: skip
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
    if field.cpp_type == d.FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    return _INTEGERS


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
            values = draw(st.lists(_value(field, depth), max_size=4))
            getattr(message, field.name).extend(values)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(_value(field, depth)))
        else:
            setattr(message, field.name, draw(_value(field, depth)))
    return message


_HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["authorization", "x-request-id", "traceparent", "tracestate", "content-type", "x-m3-bin"]
        ),
        st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=200),
    ).map(lambda one: (one[0], one[1].encode() if one[0].endswith("-bin") else one[1])),
    max_size=3,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Any, list[bytes], list[tuple[str, str | bytes]]]:
    """A method, the bytes of its requests, more than one where it takes a stream, and headers now and then."""
    method = draw(st.sampled_from(METHODS))
    count = draw(st.integers(1, 4)) if method.client_streaming else 1
    raw = [draw(messages(method.input_type)).SerializeToString() for _ in range(count)]
    damage = draw(st.sampled_from(["none", "none", "cut", "flip", "noise"]))
    if damage == "cut":
        raw[-1] = raw[-1][: draw(st.integers(0, len(raw[-1])))]
    elif damage == "flip" and raw[-1]:
        place = draw(st.integers(0, len(raw[-1]) - 1))
        raw[-1] = raw[-1][:place] + bytes([draw(st.integers(0, 255))]) + raw[-1][place + 1 :]
    elif damage == "noise":
        raw[-1] = draw(st.binary(max_size=400))
    headers = draw(_HEADERS) if draw(st.integers(0, 7)) == 0 else []
    return method, raw, headers


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"


def frames() -> st.SearchStrategy[bytes]:
    """What a connection may say: noise, another protocol, HTTP/2 with frames of any kind, length and flags."""
    frame = st.builds(
        lambda size, kind, flags, stream, body: (
            size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
        ),
        st.sampled_from([0, 4, 8, 100, 2**14, 2**24 - 1]) | st.integers(0, 200),
        st.integers(0, 12), st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 2**31 - 1, 2**32 - 1]),
        st.binary(max_size=200),
    )  # fmt: skip
    spoken = st.lists(frame, max_size=6).map(lambda many: _PREFACE + _SETTINGS + b"".join(many))
    others = st.sampled_from(
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0", _PREFACE[:10]]
    )
    return spoken | others | st.binary(max_size=500)


def say(port: int, raw: bytes) -> None:
    """Sends the bytes on a connection of its own and hangs up, whatever the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.settimeout(0.001)
        try:
            connection.sendall(raw)
            connection.recv(4096)
        except OSError:
            return
