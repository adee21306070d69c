"""A RetrieveResponse as bytes, joined by hand: the same bytes protobuf writes, without copying payloads into messages.

Building and writing the message of five payloads takes some 40 us under the interpreter's lock. The tests compare
with protobuf's own encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from memory_service.stores import Found, Retrieved

# Field number << 3 | wire type, as in retrieval.proto.
_RESULTS: Final = b"\x0a"
_SERVER_TIMES: Final = b"\x12"
_HITS: Final = b"\x0a"
_MEMORY_ID: Final = 0x09
_SCORE: Final = 0x15
_DOCUMENT_KEY: Final = b"\x1a"
_TITLE: Final = b"\x22"
_CHUNK_NUMBER: Final = b"\x28"
_TEXT: Final = b"\x32"
_PAYLOAD: Final = b"\x3a"
_HELD: Final = b"\x40\x01"
_CRC32C: Final = 0x4D
_RANK_SCORE: Final = 0x55
_METADATA: Final = b"\x5a"
_ENTRY_KEY: Final = b"\x0a"
_ENTRY_VALUE: Final = b"\x12"
_FIXED64 = struct.Struct("<BQ")
_FLOAT = struct.Struct("<Bf")
_FIXED32 = struct.Struct("<BI")
_POSITIVE_ZERO = b"\0\0\0\0"


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; `number` is not negative."""
    if number < 1 << 7:
        return bytes((number,))
    if number < 1 << 14:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 1 << 21:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _text(tag: bytes, text: str) -> bytes:
    raw = text.encode()
    return tag + varint(len(raw)) + raw


def _hit(found: Found, payload: bytes | memoryview | None) -> tuple[bytes, bytes | memoryview, bytes]:
    """(fields before the payload, payload, fields behind it) of one Hit, which follow one another."""
    memory_id, score, key, title, chunk_number, crc32c, text, rank_score, metadata = found
    head = _FIXED64.pack(_MEMORY_ID, memory_id) if memory_id else b""
    packed = _FLOAT.pack(_SCORE, score)
    if packed[1:] != _POSITIVE_ZERO:
        head += packed
    if key:
        head += _text(_DOCUMENT_KEY, key)
    if title:
        head += _text(_TITLE, title)
    if chunk_number:
        head += _CHUNK_NUMBER + varint(chunk_number)
    if text is not None:
        head += _text(_TEXT, text)
    if payload is None:
        head += _HELD
    else:
        head += _PAYLOAD + varint(len(payload))
    tail = _FIXED32.pack(_CRC32C, crc32c) if crc32c else b""
    packed = _FLOAT.pack(_RANK_SCORE, rank_score)
    if packed[1:] != _POSITIVE_ZERO:
        tail += packed
    for name, value in metadata.items() if metadata else ():
        entry = _text(_ENTRY_KEY, name) + _text(_ENTRY_VALUE, value)
        tail += _METADATA + varint(len(entry)) + entry
    return head, payload or b"", tail


def _result(
    hits: Sequence[Found], unsent: dict[int, bytes | memoryview], parts: list[bytes | memoryview]
) -> None:
    """Appends the parts of one QueryResult; takes from `unsent` the payloads that go with it."""
    inner: list[bytes | memoryview] = []
    size = 0
    for found in hits:
        head, payload, tail = _hit(found, unsent.pop(found.memory_id, None))
        length = len(head) + len(payload) + len(tail)
        opening = _HITS + varint(length) + head
        inner += (opening, payload, tail)
        size += length + len(opening) - len(head)
    parts += (_RESULTS, varint(size), *inner)


def server_times(*microseconds: int) -> bytes:
    """ServerTimes; the values in the order of its fields, zeros are left out."""
    body = b"".join(bytes((number << 3,)) + varint(us) for number, us in enumerate(microseconds, 1) if us)
    return _SERVER_TIMES + varint(len(body)) + body


def response_parts(retrieved: Retrieved) -> list[bytes | memoryview]:
    """The results as parts to join, without server times.

    A payload goes with the first hit of its memory, the others say `held`.
    """
    unsent = dict(retrieved.payloads)
    parts: list[bytes | memoryview] = []
    for hits in retrieved.hits:
        _result(hits, unsent, parts)
    return parts
