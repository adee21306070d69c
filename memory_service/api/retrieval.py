"""Retrieval.Retrieve: request -> checked Query (`read.query`) -> the store, in a reader's thread -> response."""

from __future__ import annotations

import functools
import time

from memory_service.api.interceptors import Call
from memory_service.errors import Overloaded
from memory_service.ops.reads import ReadCounter
from memory_service.read.query import read_query
from memory_service.service import Runtime
from memory_service.stores.store import KnowledgeBase, Query, Retrieved
from memory_service.telemetry.metrics import REFUSED, WAITING, observe_retrieval
from memory_service.write.cold_start import LateMemories
from protos.memory.v1 import retrieval_pb2 as pb
from protos.memory.v1 import retrieval_pb2_grpc


class Retrieval(retrieval_pb2_grpc.RetrievalServicer):
    """The read path. Lives on the event loop; only the store call leaves it."""

    def __init__(self, runtime: Runtime, late: LateMemories, reads: ReadCounter) -> None:
        self._runtime = runtime
        self._late = late
        self._reads = reads
        self._waiting = 0

    async def Retrieve(self, request: pb.RetrieveRequest, call: Call) -> pb.RetrieveResponse:
        """See retrieval.proto."""
        arrived_ns, runtime = time.perf_counter_ns(), self._runtime
        if self._waiting >= runtime.settings.max_waiting_retrievals:
            REFUSED.labels(Overloaded.reason).inc()
            raise Overloaded(f"{self._waiting} retrievals wait already: try again later", waiting=self._waiting)
        self._waiting += 1
        WAITING.inc()
        try:
            base = await runtime.open(call.access, request.knowledge_base)
            per_chunk = runtime.encoder.description.memories_per_chunk
            embed = functools.partial(runtime.run, "embed", runtime.encoder.embed)
            query = await read_query(request, base.identity, runtime.settings, per_chunk, embed)
            retrieved, queue_us = await self._search(base, query)
            self._reads.count(base, retrieved)
            if b"" in retrieved.payloads.values():
                retrieved = await self._late.complete(base, query, retrieved, call.context.time_remaining())
        finally:
            self._waiting -= 1
            WAITING.dec()
        response = response_of(retrieved)
        total_us = (time.perf_counter_ns() - arrived_ns) // 1000
        times = pb.ServerTimes(
            search_us=retrieved.search_us,
            fetch_us=retrieved.fetch_us,
            total_us=total_us,
            queue_us=queue_us,
            rank_us=retrieved.rank_us,
        )
        observe_retrieval(times)
        response.server_times.CopyFrom(times)
        return response

    async def _search(self, base: KnowledgeBase, query: Query) -> tuple[Retrieved, int]:
        """What the store finds, and the microseconds that were spent on the way to a thread and back."""

        def search() -> tuple[Retrieved, int]:
            began_ns = time.perf_counter_ns()
            return self._runtime.store.retrieve(base, query), time.perf_counter_ns() - began_ns

        begun_ns = time.perf_counter_ns()
        retrieved, in_store_ns = await self._runtime.run("filter" if query.filter else "read", search)
        return retrieved, (time.perf_counter_ns() - begun_ns - in_store_ns) // 1000


def response_of(retrieved: Retrieved) -> pb.RetrieveResponse:
    """The hits; a payload goes with the first hit of its memory, the others say `held`."""
    unsent = dict(retrieved.payloads)
    response = pb.RetrieveResponse()
    for of_query in retrieved.hits:
        hits = response.results.add().hits
        for found in of_query:
            hit = hits.add(
                memory_id=found.memory_id,
                score=found.score,
                document_key=found.document_key,
                title=found.title,
                chunk_number=found.chunk_number,
                text=found.text,
                payload_crc32c=found.crc32c,
                rank_score=found.rank_score,
                metadata=found.metadata,
            )
            payload = unsent.pop(found.memory_id, None)
            if payload is None:
                hit.held = True
            else:
                hit.payload = bytes(payload)
    return response
