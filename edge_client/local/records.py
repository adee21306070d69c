"""What a local knowledge base holds, as values: its head, documents, references with their memories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from memory3.codec.payload import Identity
from memory3.errors import CodecMismatch, EmbedderMismatch, FormatMismatch, IdentityMismatch, ModelMismatch
from memory3.formats.naming import FILE


@dataclass(frozen=True)
class Head:
    """Which knowledge base it is and what wrote it. Ids are hex SHA-256; dimension: of its vectors.

    candidates: nearest by vector that words put in order. Of a memory pack, else 0: the service's revision, and how
    many memories it has with which digest of their ids.
    """

    name: str
    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    dimension: int
    candidates: int = 50
    revision: int = 0
    memories: int = 0
    id_digest: int = 0

    @property
    def pulled(self) -> bool:
        """Whether it is a memory pack, which a service wrote."""
        return self.memories > 0

    @classmethod
    def of(cls, name: str, identity: Identity, embedder_id: str, dimension: int) -> Head:
        """A new one's, for what a bundle writes."""
        return cls(name, identity.model_id, identity.codec_id, identity.memory_format_id, embedder_id, dimension)

    def require(self, identity: Identity, embedder_id: str, remedy: str) -> None:
        """Raise the mismatch of the first id that is another; remedy: what to do, if not the usual."""
        again = "pull" if self.pulled else "remember --anew"
        remedy = remedy or f"write it anew with `edge-client {again} --kb {self.name}`"
        mismatches: tuple[tuple[type[IdentityMismatch], str, str], ...] = (
            (ModelMismatch, self.model_id, identity.model_id),
            (FormatMismatch, self.memory_format_id, identity.memory_format_id),
            (CodecMismatch, self.codec_id, identity.codec_id),
            (EmbedderMismatch, self.embedder_id, embedder_id),
        )
        for mismatch, theirs, ours in mismatches:
            if theirs != ours:
                raise mismatch(theirs, ours, remedy, subject=f"knowledge base {self.name!r} was written by")


@dataclass(frozen=True)
class LocalDocument:
    """A document as it is kept. text: whole, from which its memories can be written anew; None where it was not kept.

    references: number of memories, set by the knowledge base.
    """

    key: str
    title: str = ""
    text: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    references: int = 0

    @property
    def content_hash(self) -> bytes:
        """SHA-256 of title, metadata and text: an equal document needs no writing, whatever file it is from."""
        metadata = {name: value for name, value in sorted(self.metadata.items()) if name != FILE}
        content = json.dumps([self.title, metadata, self.text])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class Reference:
    """A reference with its memory. vector: float32 [dimension] of unit length; crc32c: of the payload."""

    memory_id: int
    key: str
    title: str
    chunk: int
    text: str
    vector: np.ndarray
    payload: bytes
    crc32c: int
