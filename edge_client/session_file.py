"""`SavedSession`: a conversation as one file, whole or not at all, refused when it is damaged or too new.

8 bytes   magic "M3CHAT" and the format version (little-endian uint16)
32 bytes  SHA-256 of the rest
the rest  a NumPy .npz without pickled objects: header (JSON), past (SQLite), payload_0 …, an array for each cache tensor
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.errors import StorageError
from edge_client.recall.recaller import MemoryRead
from memory_model.chat import Message
from memory_model.codec.payload import Identity
from memory_model.errors import CorruptFile, MissingFile

MAGIC = b"M3CHAT"
VERSION = 2
HEADER = struct.Struct("<6sH32s")


@dataclass(frozen=True)
class SavedSession:
    """What a session needs to go on.

    identity, precision: of the bundle it was held with. messages: finished turns; spelled: by a message's
    number the tokens that the model generated for it. left: how many messages, behind the system's, are no text in the
    cache any more. tokens: those whose key-values are in `arrays` (after the prefix). state: what else the caches
    need. read, payloads: the memories in the slots, as they came. past: the file of the conversation's own memories.
    """

    identity: Identity
    precision: str
    messages: Sequence[Message]
    spelled: Mapping[int, Sequence[int]]
    left: int
    tokens: Sequence[int]
    state: Mapping[str, Any]
    read: tuple[MemoryRead, ...]
    payloads: tuple[bytes, ...]
    arrays: Mapping[str, np.ndarray]
    past: bytes = b""

    def write(self, path: str | Path) -> None:
        """Write the file beside its place and move it there; raises StorageError and then changes nothing."""
        path = Path(path)
        header = {
            "identity": asdict(self.identity), "precision": self.precision, "messages": list(self.messages),
            "spelled": {str(n): list(tokens) for n, tokens in self.spelled.items()}, "left": self.left, "tokens": list(self.tokens),
            "state": dict(self.state), "read": [asdict(r) for r in self.read], "payloads": len(self.payloads),
        }  # fmt: skip
        content = io.BytesIO()
        members: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
        members["past"] = np.frombuffer(self.past, np.uint8)
        members |= {f"payload_{n}": np.frombuffer(p, np.uint8) for n, p in enumerate(self.payloads)}
        members |= {f"cache_{name}": array for name, array in self.arrays.items()}
        np.savez(content, **members)
        data = content.getbuffer()
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with beside.open("wb") as file:
                file.write(HEADER.pack(MAGIC, VERSION, hashlib.sha256(data).digest()))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise StorageError(
                f"the session could not be saved to {path}: {error.strerror or error}",
                reason="SESSION_NOT_SAVED",
            ) from error

    @classmethod
    def read_from(cls, path: str | Path) -> SavedSession:
        """Read and check the file; raises MissingFile, CorruptFile."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                start, data = file.read(HEADER.size), file.read()
        except FileNotFoundError as error:
            raise MissingFile(f"no session at {path}: save one with ChatSession.save or /save") from error
        except OSError as error:
            raise CorruptFile(f"the session at {path} cannot be read: {error.strerror or error}") from error
        if len(start) < HEADER.size or not start.startswith(MAGIC):
            raise CorruptFile(f"{path} is not a saved session")
        _, version, digest = HEADER.unpack(start)
        if version != VERSION:
            raise CorruptFile(f"{path} has session format {version}, this program reads {VERSION}")
        if hashlib.sha256(data).digest() != digest:
            raise CorruptFile(f"{path} was cut short or changed since it was saved (SHA-256 differs)")
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as members:
                return cls._of({name: members[name] for name in members.files})
        except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise CorruptFile(f"{path} is not a saved session: {error}") from error

    @classmethod
    def _of(cls, members: Mapping[str, np.ndarray]) -> SavedSession:
        header: dict[str, Any] = json.loads(members["header"].tobytes())
        return cls(
            identity=Identity(**header["identity"]), precision=str(header["precision"]),
            messages=[dict(m) for m in header["messages"]],
            spelled={int(n): [int(t) for t in tokens] for n, tokens in header["spelled"].items()},
            left=int(header["left"]), tokens=[int(t) for t in header["tokens"]], state=dict(header["state"]),
            read=tuple(MemoryRead(**r) for r in header["read"]),
            payloads=tuple(members[f"payload_{n}"].tobytes() for n in range(header["payloads"])),
            past=members["past"].tobytes(),
            arrays={n.removeprefix("cache_"): a for n, a in members.items() if n.startswith("cache_")},
        )  # fmt: skip
