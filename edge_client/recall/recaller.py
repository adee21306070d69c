"""Texts of chunks to explicit memories: embed, call the service, check, decompress. Never raises for a chunk.

    queries -> query vectors -> hits -> payloads, checked -> memories      what is in the cache skips the middle
               embedder         the service, and this device

Whatever fails on the way becomes a Recall without memories that says why, because decoding goes on.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from edge_client.errors import Cancellation, RetrievalError, described
from edge_client.recall.cache import CachedMemory, MemoryCache
from edge_client.recall.embedding import EMBEDDING_SHARE, QueryEmbedder, texts_of
from edge_client.recall.outcome import MemoryRead, Recall, RecallState, RecallTimes, without
from edge_client.recall.policy import Breaker
from edge_client.retrieval import Hit, RetrievalResult, merged, words_of
from edge_client.wire.client import MemoryClient
from memory3.codec.payload import ExplicitMemory, MemoryFormat
from memory3.errors import CorruptFile, IdentityMismatch, Memory3Error
from memory3.process_memory import return_free_memory
from memory3.text.words import DEFAULT_RANKING, Ranking

DEADLINE_S = 2.0
HELD_IDS = 512
"""Ids of cached memories that a request names, 8 bytes each: less than any payload."""
FAIR_SHARE = 0.5
"""Of its time that a call must have got before its timeout counts as the service's failure."""
LASTING = frozenset({"INCOMPATIBLE", "MODEL_MISMATCH", "CODEC_MISMATCH", "FORMAT_MISMATCH", "EMBEDDER_MISMATCH"})
"""Refusals that every further call of this bundle would get as well."""

SLOW = "EMBEDDER_SLOW"
"""The reason of a recall that was left out because embedding takes too long on this device."""
Failure = TypeVar("Failure", bound=Memory3Error)


class LocalSource(Protocol):
    """Memories on this device; `edge_client.local.knowledge_base.LocalKnowledgeBase` is one."""

    def __len__(self) -> int:
        """0 where there is nothing to search."""

    def retrieve(self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = ()) -> RetrievalResult:
        """The k nearest of each vector, each hit with its payload and the name of its knowledge base."""


class Recaller:
    """The device's read path. Thread-safe: all sessions share it, with its cache and what it learned of the service.

    client: the service, if it is to be called. local: searched at every recall, and merged with the service's answer by
    score. stand_ins: what is searched where the service does not answer, looked up whenever it does not. sends_text:
    where embedding here is too slow, send the service texts, which it embeds. ranking: of the embedder. clock: seconds,
    replaced in tests.
    """

    def __init__(
        self,
        queries: QueryEmbedder,
        client: MemoryClient | None,
        memory_format: MemoryFormat,
        *,
        sends_text: bool = False,
        ranking: Ranking = DEFAULT_RANKING,
        local: Sequence[LocalSource] = (),
        stand_ins: Callable[[], Sequence[LocalSource]] = tuple,
        cache: MemoryCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queries, self.embedder, self.client, self.memory_format = queries, queries.embedder, client, memory_format
        self.sends_text, self._ranking = sends_text, ranking
        self.local, self._stand_ins = local, stand_ins
        self.cache = cache or MemoryCache()
        self._memories_per_chunk = memory_format.config.memory.memories_per_chunk
        self._breaker = Breaker(clock)
        self._computing = threading.Lock()  # recalls wait for the service together, but use one processor

    def recall(
        self,
        queries: Sequence[str],
        *,
        deadline_s: float = DEADLINE_S,
        cancellation: Cancellation | None = None,
        also: LocalSource | None = None,
    ) -> list[Recall]:
        """One Recall for every query text, in order, by one call to the service.

        deadline_s: of this recall. Where embedding would take too much of it, the last queries are embedded, as many as
        it allows, and the others are sent as text or "skipped" (EMBEDDER_SLOW). cancellation: ends the call; the
        Recalls are then "skipped". also: a conversation's own memories, searched as `local` is.
        """
        try:
            local = [source for source in (*self.local, also) if source]  # an empty one changes nothing
            return self._recall_affordable(queries, deadline_s, cancellation, local)
        except Exception as error:
            # A fault of ours, or of a runtime, costs these chunks' memories and no more.
            reason, _, message = described(error).partition(": ")
            return without(queries, reason, message, "failed")

    def deadline_s(self, queries: Sequence[str], deadline_s: float) -> float:
        """The deadline with which these queries are to be recalled.

        It is longer than the given one where embedding the last query alone takes more than its share of that.
        """
        expected_s = self.queries.expected_s(queries[-1:])
        return deadline_s + max(0.0, expected_s - EMBEDDING_SHARE * deadline_s)

    def given(self, hits: Sequence[Sequence[Hit]]) -> list[Recall]:
        """Recalls of memories of this device that were chosen already, for each at most the model's number."""
        private = {hit.memory_id for of_one in hits for hit in of_one}
        with self._computing:
            found = self._read(RetrievalResult(tuple(map(tuple, hits))), {}, private)
        return [Recall("", memories, reads, state="held") for memories, reads in found]

    def prepare(self) -> None:
        """Do what the first recall would otherwise do within its deadline: codec tables, first run of the embedder.

        From here on it is known how long the embedder takes.
        """
        self.memory_format.codec.prepare()
        self.queries.prepare()

    def close(self) -> None:
        """Close the connections to the service."""
        if self.client is not None:
            self.client.close()

    def __del__(self) -> None:
        # Embedder and cached memories are tens of megabytes: see `DecoderGraph`.
        self.__dict__.clear()
        return_free_memory()

    def _recall_affordable(
        self, queries: Sequence[str], deadline_s: float, cancellation: Cancellation | None, local: Sequence[LocalSource]
    ) -> list[Recall]:
        """Recall what this device can embed in time, the last query in any case; what it cannot is told."""
        limit_s = EMBEDDING_SHARE * deadline_s
        chosen = self.queries.affordable(queries, limit_s)
        if len(chosen) == len(queries):
            return self._recall(queries, deadline_s, cancellation, local)
        if self.sends_text and not local and self.closed() is None:
            return self._recall(queries, deadline_s, cancellation, (), by_text=True)
        chosen = chosen or [len(queries) - 1]
        own = self._recall([queries[n] for n in chosen], deadline_s, cancellation, local)
        message = (
            f"this device takes {self.queries.text_s:.2g} s to embed a text, so {len(chosen)} of {len(queries)} "
            f"queries were embedded in the {limit_s:.2g} s that they may take"
        )
        found = without(queries, SLOW, message, "skipped")
        for index, recall in zip(chosen, own, strict=True):
            found[index] = recall
        return found

    def _recall(
        self,
        queries: Sequence[str],
        deadline_s: float,
        cancellation: Cancellation | None,
        local: Sequence[LocalSource],
        *,
        by_text: bool = False,
    ) -> list[Recall]:
        """Recall all of these. by_text: the service embeds them; nothing on this device is searched."""
        if not queries:
            return []
        failed = self.closed()
        stand_ins = self._stand_ins() if failed else ()
        if failed and not local and not (stand_ins and failed.unavailable):
            return without(queries, failed.reason, str(failed), "skipped")
        begun = time.perf_counter()
        with self._computing:
            turn = time.perf_counter()
            vectors = self.queries.vectors([] if by_text else queries)
        words, k = [words_of(q, self._ranking) for q in queries], self._memories_per_chunk
        embedded = time.perf_counter()
        times = RecallTimes(embed_ms=1e3 * (embedded - turn), queue_ms=1e3 * (turn - begun))
        # The request names these ids, so their bytes are kept until the answer is there, whatever the cache evicts.
        held = {} if failed else self.cache.held(HELD_IDS)
        answers, broken = _searched(local, vectors, k, words)
        private = {hit.memory_id for answer in answers for hits in answer.hits for hit in hits}
        if not failed:
            try:
                asked = [texts_of(query)[-1] for query in queries] if by_text else vectors
                answer = self._call(asked, words, held, deadline_s, embedded - begun, cancellation)
                # First: what this device has as well is named with the knowledge base that was requested.
                answers.insert(0, self._named(answer) if any(self.local) else answer)
            except RetrievalError as error:
                failed, stand_ins = _without_frames(error), () if by_text else self._stand_ins()
        if failed and failed.unavailable:
            answers += [source.retrieve(vectors, k=k, words=words) for source in stand_ins]
        # Where this device has nothing near, memories from before are read on, as without knowledge bases of its own.
        elsewhere = self.client is not None and not stand_ins
        nothing = not any(hits for answer in answers for hits in answer.hits)
        if broken and nothing:
            raise broken
        if failed and (not answers or failed.reason == "CANCELLED" or (elsewhere and nothing)):
            times = replace(times, call_ms=1e3 * (time.perf_counter() - embedded)).shared(len(queries))
            state: RecallState = "skipped" if failed.reason == "CANCELLED" else "failed"
            return without(queries, failed.reason, str(failed), state, times)
        answer = merged(answers, k, words)
        called = time.perf_counter()
        with self._computing:
            read = self._read(answer, held, private)
        times = replace(
            times,
            call_ms=1e3 * (called - embedded),
            server_ms=answer.server_ms,
            decompress_ms=1e3 * (time.perf_counter() - called),
        ).shared(len(queries))
        service_error = described(failed) if failed and (self.client or stand_ins) else ""
        return [
            Recall(
                query,
                memories,
                reads,
                times=times,
                state="offline" if failed else _state(reads),
                service_error=service_error,
                by_text=by_text,
            )
            for query, (memories, reads) in zip(queries, read, strict=True)
        ]

    def closed(self) -> RetrievalError | None:
        """Why the service is not called now."""
        if self.client is None:
            message = "the service is not called (offline)"
            return RetrievalError(message, reason="OFFLINE", unavailable=True)
        return self._breaker.open_error()

    def _call(
        self,
        queries: np.ndarray | Sequence[str],
        words: Sequence[Sequence[int]],
        held: Collection[int],
        deadline_s: float,
        spent_s: float,
        cancellation: Cancellation | None,
    ) -> RetrievalResult:
        """The service's answer; the breaker learns how it went, except for this device's own slowness."""
        assert self.client is not None
        left_s = deadline_s - spent_s
        if left_s <= 0:
            message = f"this device took {spent_s:.3g} s to queue and embed the query, {deadline_s:.3g} s were given"
            raise RetrievalError(message, reason="DEADLINE_EXCEEDED", unavailable=True)
        call = self._breaker.begin()
        try:
            answer = self.client.retrieve(
                queries,
                k=self._memories_per_chunk,
                words=words,
                held_ids=held,
                timeout_s=left_s,
                cancellation=cancellation,
            )
        except RetrievalError as error:
            too_late = error.reason == "DEADLINE_EXCEEDED"
            if error.reason in LASTING or (error.unavailable and not (too_late and left_s < FAIR_SHARE * deadline_s)):
                self._breaker.failed(call, error)
            elif not error.unavailable and error.reason != "CANCELLED":
                self._breaker.answered()
            raise
        self._breaker.answered()
        return answer

    def _named(self, answer: RetrievalResult) -> RetrievalResult:
        """The service's answer with its knowledge base in every hit: next to those of this device it is one of several.

        A conversation's own memories are no knowledge base.
        """
        assert self.client is not None
        base = self.client.knowledge_base
        hits = (tuple(replace(h, knowledge_base=h.knowledge_base or base) for h in of_one) for of_one in answer.hits)
        return replace(answer, hits=tuple(hits))

    def _read(
        self, answer: RetrievalResult, held: Mapping[int, CachedMemory], private: Collection[int]
    ) -> list[tuple[tuple[ExplicitMemory, ...], tuple[MemoryRead, ...]]]:
        """Memories and fates of every query's hits, checked and decoded; at most the model's number is read.

        held: what the request named; its bytes count even if the cache let them go. private: ids of local memories.
        """
        carrying: dict[int, Hit] = {}
        for hit in (h for hits in answer.hits for h in hits if h.payload):
            carrying.setdefault(hit.memory_id, hit)
        queries = [hits[: self._memories_per_chunk] for hits in answer.hits]
        found: dict[int, CachedMemory] = {}
        refused: dict[int, str] = {}
        for memory_id, hit in {h.memory_id: h for hits in queries for h in hits}.items():
            try:
                known = self._checked(carrying.get(memory_id, hit), held.get(memory_id))
                found[memory_id] = replace(known, local=memory_id in private)
            except (RetrievalError, IdentityMismatch, CorruptFile) as error:
                refused[memory_id] = described(error)
        self._decode(found, refused)
        here = {memory_id for memory_id in found if memory_id in private or memory_id not in carrying}
        return [_of_query(hits, found, refused, here) for hits in queries]

    def _checked(self, hit: Hit, pinned: CachedMemory | None) -> CachedMemory:
        """The hit's memory: a payload is checked, one that is held was; raises a Memory3Error if it is neither."""
        known = self.cache.find(hit.memory_id) or pinned
        if known is not None and known.crc32c == hit.crc32c:
            return known
        if known is not None:
            # The id names bytes for ever, so one of the two is damaged, and only ours can be fetched again.
            self.cache.forget(hit.memory_id)
        if not hit.payload:
            why = "it is held with another checksum, and fetched anew next time" if known else "no payload came"
            message = f"memory {hit.memory_id:016x} of {hit.document_key!r}: {why}"
            raise RetrievalError(message, reason="DAMAGED_MEMORY")
        hit.check()
        self.memory_format.check(hit.payload)
        return CachedMemory(hit.payload, hit.crc32c)

    def _decode(self, found: dict[int, CachedMemory], refused: dict[int, str]) -> None:
        """Decode all that are not yet, together; keep them. Moves what is not finite from `found` to `refused`."""
        coded = [memory_id for memory_id, known in found.items() if known.memory is None]
        memories = self.memory_format.decode([found[i].payload for i in coded])
        for memory_id, memory in zip(coded, memories, strict=True):
            if not _is_finite(memory):
                del found[memory_id]
                refused[memory_id] = "DAMAGED_MEMORY: it holds NaN or infinity"
                continue
            found[memory_id] = replace(found[memory_id], memory=memory)
            self.cache.put(memory_id, found[memory_id])


def _searched(
    sources: Sequence[LocalSource], vectors: np.ndarray, k: int, words: Sequence[Sequence[int]]
) -> tuple[list[RetrievalResult], Memory3Error | None]:
    """What each source has, and the last error of those that cannot be read: of a file or a disk."""
    answers, broken = list[RetrievalResult](), None
    for source in sources:
        try:
            answers.append(source.retrieve(vectors, k=k, words=words))
        except Memory3Error as error:
            broken = _without_frames(error)
    return answers, broken


def _without_frames(error: Failure) -> Failure:
    """An error to keep: with its frame and those of its causes it would live until Python's garbage collector runs."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _is_finite(memory: ExplicitMemory) -> bool:
    """Whether all numbers are finite: their sum is, which is quicker to know."""
    with np.errstate(all="ignore"):
        return math.isfinite(memory.keys.sum() + memory.values.sum())


def _state(read: Sequence[MemoryRead]) -> RecallState:
    used = [memory.held for memory in read if not memory.refused]
    return "held" if used and all(used) else "fetched"


def _of_query(
    hits: Sequence[Hit], found: Mapping[int, CachedMemory], refused: Mapping[int, str], here: Collection[int]
) -> tuple[tuple[ExplicitMemory, ...], tuple[MemoryRead, ...]]:
    """What one query reads, no text twice. here: ids of memories that were on this device already."""
    read: list[MemoryRead] = []
    chosen: dict[int, CachedMemory] = {}
    texts: set[str] = set()
    for hit in hits:
        why = refused.get(hit.memory_id, "")
        if hit.memory_id in chosen:
            why = "DUPLICATE_HIT: the service named it twice; it is read once"
        elif not why:
            if hit.text in texts:
                continue  # a copy in another document
            chosen[hit.memory_id] = found[hit.memory_id]
            texts |= {hit.text} if hit.text else set()
        read.append(
            MemoryRead(
                hit.memory_id,
                hit.document_key,
                hit.title,
                hit.chunk_number,
                hit.score,
                hit.text,
                why,
                held=not why and hit.memory_id in here,
                knowledge_base=hit.knowledge_base,
                file=hit.file,
            )
        )
    return tuple(known.memory for known in chosen.values() if known.memory is not None), tuple(read)
