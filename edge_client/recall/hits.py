"""Hits to memories: from the payload that came, or from what the device holds; refused by name if it is not ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edge_client.decoder.kv import is_finite
from edge_client.errors import DamagedMemory, RetrievalError, described
from edge_client.recall.cache import CachedMemory, MemoryCache
from edge_client.wire.retrieval import Answer, Hit
from memory_model.codec.payload import ExplicitMemory, MemoryFormat
from memory_model.errors import CorruptFile, IdentityMismatch


@dataclass(frozen=True)
class MemoryRead:
    """One memory that the model reads (or was refused): where it comes from and how near it was."""

    memory_id: int
    document_key: str
    title: str
    chunk_number: int
    score: float
    text: str | None
    refused: str = ""
    """Why it is not read, e.g. "ModelMismatch: …"; empty when it is read."""
    held: bool = False
    """Whether the device had it already."""
    knowledge_base: str = ""
    """Whose it is, where several are read."""

    @property
    def name(self) -> str:
        """For people: `Benin #2`, or `atlas: Benin #2` where several knowledge bases are read."""
        base = f"{self.knowledge_base}: " if self.knowledge_base else ""
        return f"{base}{self.title or self.document_key} #{self.chunk_number}"


@dataclass(frozen=True)
class ChunkMemories:
    """What one query found: memories that can be read, their payloads in parallel, and every hit with its fate."""

    memories: tuple[ExplicitMemory, ...]
    payloads: tuple[bytes, ...]
    read: tuple[MemoryRead, ...]

    @property
    def held(self) -> bool:
        """Whether there are memories, and all of them were here already."""
        return bool(self.memories) and all(r.held for r in self.read if not r.refused)


class HitReader:
    """Checks, decodes and keeps. Thread-safe. At most the model's number of hits of a query is read."""

    def __init__(self, memory_format: MemoryFormat, cache: MemoryCache) -> None:
        self._format = memory_format
        self._cache = cache
        self._limit = memory_format.config.memory.memories_per_chunk

    def read(self, answer: Answer, held: Mapping[int, CachedMemory]) -> list[ChunkMemories]:
        """Memories for every query. held: what the request named; its bytes count even if the cache let them go."""
        carrying: dict[int, Hit] = {}
        for hit in (h for hits in answer.hits for h in hits if h.payload):
            carrying.setdefault(hit.memory_id, hit)
        found: dict[int, CachedMemory] = {}
        refused: dict[int, str] = {}
        for memory_id, hit in {h.memory_id: h for hits in answer.hits for h in hits[: self._limit]}.items():
            try:
                found[memory_id] = self._checked(carrying.get(memory_id, hit), held.get(memory_id))
            except (RetrievalError, IdentityMismatch, CorruptFile) as error:
                refused[memory_id] = described(error)
        here = {memory_id for memory_id in found if memory_id not in carrying}
        self._decode(found, refused)
        return [_chunk(hits[: self._limit], found, refused, here) for hits in answer.hits]

    def _checked(self, hit: Hit, pinned: CachedMemory | None) -> CachedMemory:
        """What the hit's memory is here: a payload is checked, one that is held was; raises by name if neither."""
        known = self._cache.find(hit.memory_id) or pinned
        if known is not None and known.crc32c == hit.crc32c:
            return known
        if known is not None:
            # The id names bytes for ever, so one of the two is damaged, and only ours can be fetched again.
            self._cache.forget(hit.memory_id)
        if not hit.payload:
            why = (
                "it is held with another checksum, and fetched anew next time" if known else "no payload came"
            )
            raise DamagedMemory(f"memory {hit.memory_id:016x} of {hit.document_key!r}: {why}")
        hit.check()
        self._format.check(hit.payload)
        return CachedMemory(hit.payload, hit.crc32c)

    def _decode(self, found: dict[int, CachedMemory], refused: dict[int, str]) -> None:
        """Decode all that are not yet, together; keep them. Moves what is not finite from `found` to `refused`."""
        coded = [memory_id for memory_id, known in found.items() if known.memory is None]
        memories = self._format.decode([found[i].payload for i in coded])
        for memory_id, memory in zip(coded, memories, strict=True):
            if not is_finite(memory):
                del found[memory_id]
                refused[memory_id] = "DamagedMemory: it holds NaN or infinity"
                continue
            memory.keys.flags.writeable = memory.values.flags.writeable = False  # sessions share them
            found[memory_id] = replace(found[memory_id], memory=memory)
            self._cache.put(memory_id, found[memory_id])


def _chunk(
    hits: Sequence[Hit], found: Mapping[int, CachedMemory], refused: Mapping[int, str], here: set[int]
) -> ChunkMemories:
    read: list[MemoryRead] = []
    chosen: dict[int, CachedMemory] = {}
    for hit in hits:
        why = refused.get(hit.memory_id, "")
        if hit.memory_id in chosen:
            why = "DuplicateHit: the service named it twice; it is read once"
        elif not why:
            chosen[hit.memory_id] = found[hit.memory_id]
        is_held = not why and hit.memory_id in here
        read.append(
            MemoryRead(
                hit.memory_id, hit.document_key, hit.title, hit.chunk_number, hit.score, hit.text, why, is_held,
                hit.knowledge_base,
            )
        )  # fmt: skip
    memories = tuple(known.memory for known in chosen.values() if known.memory is not None)
    return ChunkMemories(memories, tuple(known.payload for known in chosen.values()), tuple(read))
