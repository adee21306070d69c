"""What names a document's content and a memory's bytes, and how a document whose memories are not written is known.

A document of a cold start is stored with its texts and vectors and with empty payloads. Two things tell it from a
finished one, so that no store has to know of it: its content hash is the real one XOR a constant, hence the finished
document takes its place as any other version would, and the ids of its memories are those of empty payloads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

_UNWRITTEN = hashlib.sha256(b"memory.v1: the memories of this document are not written yet").digest()


def memory_id_of(key: str, content_hash: bytes, chunk: int, payload: bytes) -> int:
    """64 bits of SHA-256: names these bytes for ever, so that a client may keep them.

    The payload names its model itself.
    """
    digest = hashlib.sha256(content_hash + chunk.to_bytes(4, "big") + hashlib.sha256(payload).digest() + key.encode())
    return int.from_bytes(digest.digest()[:8], "big")


def content_hash_of(title: str, metadata: Mapping[str, str], parts: Sequence[bytes]) -> bytes:
    """SHA-256 over title, metadata and content, each with its length, so that no two documents run together."""
    digest = hashlib.sha256()
    pairs = [text.encode() for pair in sorted(metadata.items()) for text in pair]
    for group in ([title.encode()], pairs, parts):
        digest.update(len(group).to_bytes(8, "big"))
        for part in group:
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def text_hash_of(title: str, metadata: Mapping[str, str], text: str, overlap_tokens: int = 0) -> bytes:
    """The content hash of a document as text; cut otherwise, it is another document."""
    cut = [f"overlap of {overlap_tokens} tokens".encode()] if overlap_tokens else []
    return content_hash_of(title, metadata, [text.encode(), *cut])


def unwritten_hash_of(content_hash: bytes) -> bytes:
    """The hash under which a document without memories is stored, of the real one; and the other way round."""
    return bytes(a ^ b for a, b in zip(content_hash, _UNWRITTEN, strict=True))


def is_unwritten(key: str, stored_hash: bytes, memory_ids: Sequence[int]) -> bool:
    """Whether a document as stored still lacks its memories."""
    return bool(memory_ids) and memory_ids[0] == memory_id_of(key, stored_hash, 0, b"")


def real_hash(key: str, stored_hash: bytes, memory_ids: Sequence[int]) -> bytes:
    """The hash of a stored document's content, whether its memories are written or not."""
    return unwritten_hash_of(stored_hash) if is_unwritten(key, stored_hash, memory_ids) else stored_hash
