"""Retrieval.Retrieve: bytes of query vectors -> checked vectors -> store, in a thread -> bytes of the response."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import Executor

import grpc

from memory_service.access.catalogue import Catalogue
from memory_service.api.forwarding import Forwarding
from memory_service.api.limits import MAX_HELD_IDS
from memory_service.api.wire import response_parts, server_times
from memory_service.errors import BadRequest, Overloaded
from memory_service.ops.metrics import REFUSED, WAITING, observe_retrieval
from memory_service.settings import Settings
from memory_service.stores import KnowledgeBase, Query, Retrieved
from memory_service.stores.filters import equal_to
from memory_service.stores.identity import require_readable
from memory_service.write.cold_start import LateMemories
from memory_service.write.vectors import read_vectors
from protos.memory.v1 import retrieval_pb2, retrieval_pb2_grpc

_MAX_FILTERS = 16
_MAX_WORDS = 512


class Retrieval(retrieval_pb2_grpc.RetrievalServicer):
    """The read path. Lives on the event loop; only the store call leaves it."""

    def __init__(
        self,
        catalogue: Catalogue,
        readers: Executor,
        settings: Settings,
        late: LateMemories,
        elsewhere: Forwarding | None = None,
    ) -> None:
        """elsewhere: the process that can write memories, where this one cannot."""
        self._catalogue = catalogue
        self._readers = readers
        self._settings = settings
        self._late = late
        self._elsewhere = elsewhere
        self._waiting = 0

    async def Retrieve(  # type: ignore[override]  # bytes in place of the message, see `wire`
        self, request: retrieval_pb2.RetrieveRequest, context: grpc.aio.ServicerContext
    ) -> bytes:
        """See retrieval.proto; the response as the wire has it."""
        arrived = time.perf_counter_ns()
        if self._waiting >= self._settings.max_waiting_retrievals:
            REFUSED.labels(Overloaded.reason).inc()
            raise Overloaded(
                f"{self._waiting} retrievals wait already: try again a little later", waiting=self._waiting
            )
        base = self._catalogue.open(request.knowledge_base)
        query = self._query(request, base)
        self._waiting += 1
        WAITING.inc()
        asked = time.perf_counter_ns()
        try:
            retrieved, began, ended = await asyncio.get_running_loop().run_in_executor(
                self._readers, self._retrieved, base, query
            )
            queued_ns = began - asked + time.perf_counter_ns() - ended
            if b"" in retrieved.payloads.values():
                if self._elsewhere is not None:
                    return await self._elsewhere.retrieve(request, context)
                retrieved = await self._late.complete(base, query, retrieved, context.time_remaining())
        finally:
            self._waiting -= 1
            WAITING.dec()
        parts = response_parts(retrieved)
        total_us = (time.perf_counter_ns() - arrived) // 1000
        times = (retrieved.search_us, retrieved.fetch_us, total_us, queued_ns // 1000, retrieved.rank_us)
        observe_retrieval(*times)
        return b"".join((*parts, server_times(*times)))

    def _retrieved(self, base: KnowledgeBase, query: Query) -> tuple[Retrieved, int, int]:
        """In a thread: what the store finds, when it was asked and when it had answered, ns."""
        began = time.perf_counter_ns()
        return self._catalogue.store.retrieve(base, query), began, time.perf_counter_ns()

    def _query(self, request: retrieval_pb2.RetrieveRequest, base: KnowledgeBase) -> Query:
        """The request as a checked Query; raises the errors retrieval.proto lists."""
        require_readable(
            base.identity, request.dimension,
            model_id=request.model_id, codec_id=request.codec_id,
            memory_format_id=request.memory_format_id, embedder_id=request.embedder_id,
        )  # fmt: skip
        vectors = read_vectors(request.query_vectors, base.identity.dimension, declared=request.dimension)
        if len(vectors) > self._settings.max_queries:
            raise BadRequest(
                f"{len(vectors)} query vectors in one request, at most {self._settings.max_queries}",
                field="query_vectors",
            )
        k = request.k or self._catalogue.encoder.memories_per_chunk
        if k > self._settings.max_k:
            raise BadRequest(f"k is {k}, at most {self._settings.max_k} memories can be asked for", field="k")
        if k * len(vectors) > self._settings.max_hits:
            raise BadRequest(
                f"{len(vectors)} queries for {k} memories each, at most {self._settings.max_hits} hits in one request",
                field="k",
            )
        if len(request.held_ids) > MAX_HELD_IDS:
            raise BadRequest(f"{len(request.held_ids)} held_ids, at most {MAX_HELD_IDS}", field="held_ids")
        if len(request.metadata_filter) > _MAX_FILTERS:
            raise BadRequest(
                f"a filter of {len(request.metadata_filter)} values, at most {_MAX_FILTERS}",
                field="metadata_filter",
            )
        words = [tuple(of_query.hashes) for of_query in request.query_words]
        if words and len(words) != len(vectors):
            raise BadRequest(
                f"query_words of {len(words)} queries for {len(vectors)} query vectors: send one entry each, or none",
                field="query_words",
            )
        if any(len(of_query) > _MAX_WORDS for of_query in words):
            raise BadRequest(f"a query of more than {_MAX_WORDS} words", field="query_words")
        drop = request.maximum_drop if request.HasField("maximum_drop") else None
        if drop is not None and not drop >= 0:
            raise BadRequest(f"maximum_drop is {drop}, it must be 0 or more", field="maximum_drop")
        minimum_score = request.minimum_score if request.HasField("minimum_score") else None
        if minimum_score is not None and math.isnan(minimum_score):
            raise BadRequest("minimum_score is NaN", field="minimum_score")
        return Query(
            vectors=vectors, k=k, held_ids=frozenset(request.held_ids), minimum_score=minimum_score,
            filter=equal_to(dict(request.metadata_filter)), return_text=request.return_text,
            words=words, candidates=self._settings.rerank_candidates, maximum_drop=drop,
        )  # fmt: skip
