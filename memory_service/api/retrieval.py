"""Retrieval.Retrieve: query vectors as bytes -> checked Query -> the store, in a reader's thread -> response."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import Executor

from memory_service.access.authorization import Catalogue
from memory_service.api.interceptors import Call
from memory_service.errors import BadRequest, Overloaded
from memory_service.ops.metrics import REFUSED, WAITING, observe_retrieval
from memory_service.ops.tracing import span
from memory_service.settings import MAX_HELD_IDS, MAX_HITS, MAX_QUERIES, Settings
from memory_service.stores import KnowledgeBase, Query, Retrieved
from memory_service.stores.filters import equal_to
from memory_service.stores.identity import require_readable
from memory_service.write.cold_start import LateMemories
from memory_service.write.vectors import read_vectors
from protos.memory.v1 import retrieval_pb2 as pb
from protos.memory.v1 import retrieval_pb2_grpc

_MAX_FILTERS = 16
_MAX_WORDS = 512


class Retrieval(retrieval_pb2_grpc.RetrievalServicer):
    """The read path. Lives on the event loop; only the store call leaves it."""

    def __init__(
        self, catalogue: Catalogue, readers: Executor, settings: Settings, late: LateMemories
    ) -> None:
        self._catalogue = catalogue
        self._readers = readers
        self._settings = settings
        self._late = late
        self._waiting = 0

    async def Retrieve(self, request: pb.RetrieveRequest, call: Call) -> pb.RetrieveResponse:
        """See retrieval.proto."""
        arrived_ns = time.perf_counter_ns()
        if self._waiting >= self._settings.max_waiting_retrievals:
            REFUSED.labels(Overloaded.reason).inc()
            raise Overloaded(
                f"{self._waiting} retrievals wait already: try again a little later", waiting=self._waiting
            )
        base = self._catalogue.open(call.access, request.knowledge_base)
        query = self._query(request, base)
        self._waiting += 1
        WAITING.inc()
        try:
            with span("store.retrieve", queries=len(query.vectors)):
                retrieved, queue_us = await self._search(base, query)
            if b"" in retrieved.payloads.values():
                retrieved = await self._late.complete(base, query, retrieved, call.time_remaining_s())
        finally:
            self._waiting -= 1
            WAITING.dec()
        response = response_of(retrieved)
        total_us = (time.perf_counter_ns() - arrived_ns) // 1000
        times = (retrieved.search_us, retrieved.fetch_us, total_us, queue_us, retrieved.rank_us)
        observe_retrieval(*times)
        response.server_times.CopyFrom(
            pb.ServerTimes(
                search_us=times[0], fetch_us=times[1], total_us=times[2], queue_us=times[3], rank_us=times[4]
            )
        )
        return response

    async def _search(self, base: KnowledgeBase, query: Query) -> tuple[Retrieved, int]:
        """What the store finds, and the microseconds that were spent on the way to a thread and back."""

        def search() -> tuple[Retrieved, int]:
            began_ns = time.perf_counter_ns()
            return self._catalogue.store.retrieve(base, query), time.perf_counter_ns() - began_ns

        asked_ns = time.perf_counter_ns()
        retrieved, in_store_ns = await asyncio.get_running_loop().run_in_executor(self._readers, search)
        return retrieved, (time.perf_counter_ns() - asked_ns - in_store_ns) // 1000

    def _query(self, request: pb.RetrieveRequest, base: KnowledgeBase) -> Query:
        """The request as a checked Query; raises the errors retrieval.proto lists."""
        require_readable(
            base.identity, request.dimension,
            model_id=request.model_id, codec_id=request.codec_id,
            memory_format_id=request.memory_format_id, embedder_id=request.embedder_id,
        )  # fmt: skip
        vectors = read_vectors(request.query_vectors, base.identity.dimension, declared=request.dimension)
        if len(vectors) > MAX_QUERIES:
            raise BadRequest(
                f"{len(vectors)} query vectors in one request, at most {MAX_QUERIES}",
                field="query_vectors",
            )
        k = request.k or self._catalogue.encoder.memories_per_chunk
        if k > self._settings.max_k:
            raise BadRequest(f"k is {k}, at most {self._settings.max_k} memories can be asked for", field="k")
        if k * len(vectors) > MAX_HITS:
            raise BadRequest(
                f"{len(vectors)} queries for {k} memories each, at most {MAX_HITS} hits in one request",
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


def response_of(retrieved: Retrieved) -> pb.RetrieveResponse:
    """The hits; a payload goes with the first hit of its memory, the others say `held`."""
    unsent = dict(retrieved.payloads)
    response = pb.RetrieveResponse()
    for of_query in retrieved.hits:
        hits = response.results.add().hits
        for found in of_query:
            hit = hits.add(
                memory_id=found.memory_id, score=found.score, document_key=found.document_key, title=found.title,
                chunk_number=found.chunk_number, text=found.text, payload_crc32c=found.crc32c,
            )  # fmt: skip
            payload = unsent.pop(found.memory_id, None)
            if payload is None:
                hit.held = True
            else:
                hit.payload = bytes(payload)
    return response
