"""Texts of chunks to explicit memories: embed, ask the service, check, decompress. Never raises for a chunk.

    queries -> query vectors -> hits -> payloads, checked -> memories      what is in the cache skips the middle
               embedder         hedge -> client, or the device's pack

Whatever goes wrong on the way becomes a Recall without memories that says why, because decoding goes on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from edge_client.cancellation import Cancellation
from edge_client.decoder.graph import return_free_memory
from edge_client.errors import (
    DeadlineExceeded,
    RecallCancelled,
    RetrievalError,
    ServiceUnavailable,
)
from edge_client.generate.query import query_vectors
from edge_client.recall.cache import CachedMemory, CacheStatistics, MemoryCache
from edge_client.recall.circuit import Circuit
from edge_client.recall.hits import HitReader, MemoryRead
from edge_client.wire.hedge import Hedge, HedgeStatistics, PendingCall
from edge_client.wire.retrieval import Answer
from memory_model.codec.payload import ExplicitMemory, MemoryFormat
from memory_model.embedder import Embedder
from memory_model.words import query_words

__all__ = ["MemoryRead", "Recall", "RecallState", "RecallStatistics", "RecallTimes", "Recaller"]

CACHE_BYTES = 64 << 20
"""Of both tiers, unless another cache is given."""
HELD_IDS = 512
"""Ids of cached memories that a request names, 8 bytes each: less than any payload."""
SERVICE_SHARE = 0.75
"""Of a recall's deadline, what the service gets where a pack can answer instead."""

RecallState = Literal["fetched", "held", "late", "failed", "skipped", "offline", "off"]
"""fetched: at least one memory came from the service. held: all were here already. late: they came, or will, after
their chunk began. failed: asked in vain. skipped: not asked. offline: from the device's own pack. off: not wanted."""


@dataclass(frozen=True)
class RecallTimes:
    """Where a chunk's recall spent its time, in milliseconds. Chunks asked for together share a call.

    queue: behind other recalls of this device. call: to the answer, of which the server says it took `server_ms`,
    of these `search_ms` and `fetch_ms` for searching and for reading payloads.
    """

    embed_ms: float = 0.0
    call_ms: float = 0.0
    server_ms: float = 0.0
    decompress_ms: float = 0.0
    inject_ms: float = 0.0
    queue_ms: float = 0.0
    search_ms: float = 0.0
    fetch_ms: float = 0.0


@dataclass(frozen=True)
class Recall:
    """What a chunk reads: memories (at most the model's number), where they are from, or why there are none.

    memories: arrays are read-only. payloads: their checked bytes, one for each. read: one for each hit, refused
    ones included. error: name and message of what went wrong for the whole chunk, empty if nothing did.
    service_error: why the service was not used, when memories came from the device's pack. calls: made to the
    service for this chunk and those asked for together with it; 2 when the first was late or broke.
    """

    query: str
    memories: tuple[ExplicitMemory, ...] = ()
    read: tuple[MemoryRead, ...] = ()
    error: str = ""
    times: RecallTimes = RecallTimes()
    state: RecallState = "fetched"
    payloads: tuple[bytes, ...] = ()
    service_error: str = ""
    calls: int = 0


@dataclass(frozen=True)
class RecallStatistics:
    """Chunks by state (how they left here; "late" is the session's to count), second calls, and the cache."""

    states: Mapping[str, int]
    hedge: HedgeStatistics
    cache: CacheStatistics


_NOT_ASKED = "Offline: the service is not asked (--offline, or none was named)"


class Asking(Protocol):
    """What is needed of a client: `edge_client.wire.client`."""

    def begin(
        self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = (), held_ids: Collection[int] = (),
        return_text: bool = True, timeout_s: float | None = None, connection: int = 0,
    ) -> PendingCall:  # fmt: skip
        """Start a call; raises nothing for the service's sake."""
        ...

    def close(self) -> None:
        """Close the connections."""


class Pack(Protocol):
    """Memories that lie on the device, searched here; `edge_client.recall.pack.MemoryPack` is one."""

    def retrieve(self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = ()) -> Answer:
        """The k nearest of each vector; raises a Memory3Error."""
        ...


class Recaller:
    """The device's read path. Thread-safe: sessions share it, with its cache and what it knows of the service.

    client: the service, asked first. pack: used when there is no client or the service does not answer; the service
    then has a part of the deadline, so that there is time left for it.
    deadline_s: of a recall that names none. hedge_after_s: see `Hedge`. clock: seconds, replaced in tests.
    """

    def __init__(
        self, embedder: Embedder, client: Asking | None, memory_format: MemoryFormat, *, pack: Pack | None = None,
        cache: MemoryCache | None = None, deadline_s: float = 2.0, hedge_after_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.embedder = embedder
        self.client = client
        self.memory_format = memory_format
        self.pack = pack
        self.cache = MemoryCache.of(CACHE_BYTES) if cache is None else cache
        self.deadline_s = deadline_s
        self._hits = HitReader(memory_format, self.cache)
        self._hedge = Hedge(hedge_after_s)
        self._circuit = Circuit(clock)
        self._states: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._computing = threading.Lock()  # recalls wait for the service together, but use one processor

    def recall(
        self, queries: Sequence[str], *, deadline_s: float | None = None, cancellation: Cancellation | None = None
    ) -> list[Recall]:  # fmt: skip
        """One Recall for every query text, in order, by one call to the service (two if the first is late).

        deadline_s: from now until the answer. cancellation: ends the call; the Recalls are then "skipped".
        """
        wait_s = self.deadline_s if deadline_s is None else deadline_s
        try:
            recalls = self._recall(queries, wait_s, cancellation)
        except Exception as error:
            # A fault of ours, or of a runtime, costs these chunks' memories and no more.
            recalls = [Recall(q, error=_name(error), state="failed") for q in queries]
        with self._lock:
            self._states.update(r.state for r in recalls)
        return recalls

    def statistics(self) -> RecallStatistics:
        """Counts since the start."""
        with self._lock:
            states = dict(self._states)
        return RecallStatistics(states, self._hedge.statistics(), self.cache.statistics())

    def close(self) -> None:
        """Close the connections to the service."""
        if self.client is not None:
            self.client.close()

    def __del__(self) -> None:
        # Embedder and cached memories are tens of megabytes: see `DecoderGraph`.
        self.__dict__.clear()
        return_free_memory()

    def _recall(
        self, queries: Sequence[str], deadline_s: float, cancellation: Cancellation | None
    ) -> list[Recall]:
        if not queries:
            return []
        why_not = self._circuit.why_not() if self.client else _NOT_ASKED
        if why_not and self.pack is None:
            return [Recall(q, error=why_not, state="skipped") for q in queries]
        started = time.perf_counter()
        with self._computing:
            vectors = query_vectors(self.embedder, queries)
        words = [query_words(q) for q in queries]
        embedded = time.perf_counter()
        k = self.memory_format.config.memory.memories_per_chunk
        held: dict[int, CachedMemory] = {}
        share = 1.0 if self.pack is None else SERVICE_SHARE
        state: RecallState = "fetched"
        calls = 0
        try:
            if self.client is None or why_not:
                raise ServiceUnavailable(why_not)
            # Whoever asks with these ids keeps their bytes until the answer is there, whatever the cache evicts.
            held = self.cache.held(HELD_IDS)
            answer, calls = self._ask(
                self.client, vectors, k, words, held, share * deadline_s - (embedded - started), cancellation
            )
        except (ServiceUnavailable, DeadlineExceeded) as error:
            why_not = why_not or _name(error)
            if self.pack is None:
                return _without(queries, why_not, "failed", started, embedded)
            answer, state = self.pack.retrieve(vectors, k=k, words=words), "offline"
        except RetrievalError as error:
            stopped = isinstance(error, RecallCancelled)
            return _without(queries, _name(error), "skipped" if stopped else "failed", started, embedded)
        called = time.perf_counter()
        with self._computing:
            chunks = self._hits.read(answer, held)
        done = time.perf_counter()
        times = _share(embedded - started, called - embedded, done - called, len(queries), answer)
        return [
            Recall(
                query, chunk.memories, chunk.read, times=times, payloads=chunk.payloads,
                state="held" if chunk.held and state == "fetched" else state, service_error=why_not, calls=calls,
            )
            for query, chunk in zip(queries, chunks, strict=True)
        ]  # fmt: skip

    def _ask(
        self, client: Asking, vectors: np.ndarray, k: int, words: Sequence[Sequence[int]],
        held: Collection[int], left_s: float, cancellation: Cancellation | None,
    ) -> tuple[Answer, int]:  # fmt: skip
        """The service's answer and the number of calls; the circuit learns how it went."""
        if left_s <= 0:
            raise RetrievalError("the deadline was over before the query was embedded: raise it")
        try:
            found = self._hedge.ask(
                lambda connection, timeout_s: client.begin(
                    vectors, k=k, words=words, held_ids=held, timeout_s=timeout_s, connection=connection
                ),
                left_s, cancellation,
            )  # fmt: skip
        except (ServiceUnavailable, DeadlineExceeded) as error:
            self._circuit.failed(_name(error), error.retry_after_s)
            raise
        except RecallCancelled:
            raise
        except RetrievalError:
            self._circuit.answered()
            raise
        self._circuit.answered()
        return found


def _without(
    queries: Sequence[str], why: str, state: RecallState, started: float, embedded: float
) -> list[Recall]:
    times = _share(embedded - started, time.perf_counter() - embedded, 0, len(queries))
    return [Recall(q, error=why, times=times, state=state) for q in queries]


def _share(
    embed_s: float, call_s: float, decompress_s: float, chunks: int, answer: Answer | None = None
) -> RecallTimes:  # fmt: skip
    """Times of chunks asked for together, shared out equally."""
    server = (answer.server_ms, answer.search_ms, answer.fetch_ms) if answer else (0.0, 0.0, 0.0)
    stages = (1e3 * embed_s, 1e3 * call_s, 1e3 * decompress_s, *server)
    embed, call, decompress, whole, search, fetch = (round(ms / chunks, 3) for ms in stages)
    return RecallTimes(embed, call, whole, decompress, search_ms=search, fetch_ms=fetch)


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
