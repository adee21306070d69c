"""Texts of chunks to explicit memories: embed, ask the service, check, decompress. Never raises for a chunk.

Whatever goes wrong on the way becomes a Recall without memories that says why, because decoding goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edge_client.caches import is_finite
from edge_client.errors import DeadlineExceeded, RetrievalError, ServiceUnavailable
from edge_client.retrieval_client import Answer, Hit, RetrievalClient
from memory_model.embedder import Embedder
from memory_model.errors import CorruptFile, IdentityMismatch
from memory_model.memory import ExplicitMemory, MemoryFormat
from memory_model.words import query_words

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""A service that does not answer is not asked again for this long; the pause doubles up to the longest."""


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


@dataclass(frozen=True)
class RecallTimes:
    """Where a chunk's recall spent its time, in milliseconds. Chunks asked for together share a call."""

    embed_ms: float = 0.0
    call_ms: float = 0.0
    server_ms: float = 0.0
    decompress_ms: float = 0.0
    inject_ms: float = 0.0


@dataclass(frozen=True)
class Recall:
    """What a chunk reads: memories (at most the model's number), where they are from, or why there are none.

    `error` is the name and message of what went wrong for the whole chunk, empty if nothing did.
    """

    query: str
    memories: tuple[ExplicitMemory, ...] = ()
    read: tuple[MemoryRead, ...] = ()
    error: str = ""
    times: RecallTimes = RecallTimes()


class Recaller:
    """The device's read path. One thread at a time.

    clock: seconds, replaced in tests.
    """

    def __init__(
        self,
        embedder: Embedder,
        client: RetrievalClient,
        memory_format: MemoryFormat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.embedder = embedder
        self.client = client
        self.memory_format = memory_format
        self._clock = clock
        self._pause_s = 0.0
        self._closed_until = 0.0
        self._last_error = ""

    def recall(self, queries: Sequence[str]) -> list[Recall]:
        """One Recall for every query text, in order, by one call to the service."""
        if not queries:
            return []
        if self._clock() < self._closed_until:
            return [Recall(q, error=f"{self._last_error} (not asked again yet)") for q in queries]
        started = time.perf_counter()
        vectors = self.embedder.embed(queries)
        embedded = time.perf_counter()
        try:
            answer = self.client.retrieve(
                vectors, k=self.memory_format.config.memory.memories_per_chunk,
                words=[query_words(q) for q in queries],
            )  # fmt: skip
        except RetrievalError as error:
            self._note_failure(error)
            times = _share(embedded - started, time.perf_counter() - embedded, 0, 0, len(queries))
            return [Recall(q, error=_name(error), times=times) for q in queries]
        self._pause_s = 0.0
        called = time.perf_counter()
        recalls = self._decompress(queries, answer)
        done = time.perf_counter()
        times = _share(
            embedded - started, called - embedded, answer.server_ms / 1e3, done - called, len(queries)
        )
        return [replace(r, times=times) for r in recalls]

    def _decompress(self, queries: Sequence[str], answer: Answer) -> list[Recall]:
        """Decode every distinct payload once, all together; refuse by name what is not ours."""
        payloads: dict[int, bytes] = {}
        refused: dict[int, str] = {}
        for hit in (h for hits in answer.hits for h in hits):
            if not hit.payload or hit.memory_id in payloads:
                continue
            try:
                hit.check()
                self.memory_format.check(hit.payload)
                payloads[hit.memory_id] = hit.payload
            except (RetrievalError, IdentityMismatch, CorruptFile) as error:
                refused[hit.memory_id] = _name(error)
        decoded = dict(zip(payloads, self.memory_format.decode(list(payloads.values())), strict=True))
        for memory_id in [i for i, memory in decoded.items() if not is_finite(memory)]:
            del decoded[memory_id]
            refused[memory_id] = "DamagedMemory: it holds NaN or infinity"
        limit = self.memory_format.config.memory.memories_per_chunk
        recalls = []
        for query, hits in zip(queries, answer.hits, strict=True):
            read = tuple(_described(h, refused, decoded) for h in hits[:limit])
            memories = tuple(decoded[h.memory_id] for h in hits[:limit] if h.memory_id in decoded)
            recalls.append(Recall(query, memories, read))
        return recalls

    def _note_failure(self, error: RetrievalError) -> None:
        if isinstance(error, ServiceUnavailable | DeadlineExceeded):
            self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            self._closed_until = self._clock() + self._pause_s
            self._last_error = _name(error)


def _described(hit: Hit, refused: dict[int, str], decoded: dict[int, ExplicitMemory]) -> MemoryRead:
    why = refused.get(hit.memory_id, "")
    if not why and hit.memory_id not in decoded:
        why = "DamagedMemory: the service sent no payload"
    return MemoryRead(
        hit.memory_id, hit.document_key, hit.title, hit.chunk_number, hit.score, hit.text, refused=why
    )  # fmt: skip


def _share(embed_s: float, call_s: float, server_s: float, decompress_s: float, chunks: int) -> RecallTimes:
    parts = (round(1e3 * s / chunks, 3) for s in (embed_s, call_s, server_s, decompress_s))
    return RecallTimes(*parts)


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
