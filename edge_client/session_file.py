"""A saved session as one file, whole or not at all, refused when it is damaged or too new.

8 bytes   magic "M3CHAT" and the format version (little-endian uint16)
32 bytes  SHA-256 of the rest
8 bytes   length of the header (little-endian uint64)
the rest  the header (JSON), and the conversation's own memories (an SQLite file; nothing where it has none)
"""

from __future__ import annotations

import hashlib
import json
import secrets
import struct
from pathlib import Path
from typing import Any

from edge_client.errors import StorageError
from memory_model.errors import CorruptFile, MissingFile

MAGIC = b"M3CHAT"
VERSION = 3
START = struct.Struct("<6sH32s")
LENGTH = struct.Struct("<Q")


def write_session(path: Path, header: dict[str, Any], past: bytes) -> None:
    """Write the file beside its place and move it there; raises StorageError and then changes nothing."""
    said = json.dumps(header).encode()
    data = LENGTH.pack(len(said)) + said + past
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_bytes(START.pack(MAGIC, VERSION, hashlib.sha256(data).digest()) + data)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise StorageError(
            f"the session could not be saved to {path}: {error.strerror or error}", reason="SESSION_NOT_SAVED"
        ) from error


def read_session(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and memories of a file, checked; raises MissingFile, CorruptFile."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingFile(f"no session at {path}: save one with ChatSession.save or /save") from error
    except OSError as error:
        raise CorruptFile(f"the session at {path} cannot be read: {error.strerror or error}") from error
    start, data = content[: START.size], content[START.size :]
    if len(start) < START.size or not start.startswith(MAGIC):
        raise CorruptFile(f"{path} is not a saved session")
    _, version, digest = START.unpack(start)
    if version != VERSION:
        raise CorruptFile(f"{path} has session format {version}, this program reads {VERSION}")
    if hashlib.sha256(data).digest() != digest:
        raise CorruptFile(f"{path} was cut short or changed since it was saved (SHA-256 differs)")
    end = LENGTH.size + LENGTH.unpack_from(data)[0]
    return json.loads(data[LENGTH.size : end]), data[end:]
