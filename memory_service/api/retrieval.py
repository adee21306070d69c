"""Retrieval.Retrieve: bytes of query vectors -> checked vectors -> store, in a thread -> bytes of the response."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor

import grpc
import numpy as np

from memory_service.access.catalogue import Catalogue
from memory_service.api.forwarding import Forwarding
from memory_service.api.wire import response_parts, server_times
from memory_service.errors import Overloaded
from memory_service.ops.metrics import REFUSED, WAITING, observe_retrieval
from memory_service.read.query import read_query
from memory_service.settings import Settings
from memory_service.stores import KnowledgeBase, Query, Retrieved
from memory_service.write.cold_start import LateMemories
from memory_service.write.encoder import Encoder
from protos.memory.v1 import retrieval_pb2, retrieval_pb2_grpc


class Retrieval(retrieval_pb2_grpc.RetrievalServicer):
    """The read path. Lives on the event loop; only the store call leaves it."""

    def __init__(
        self,
        catalogue: Catalogue,
        encoder: Encoder,
        readers: Executor,
        settings: Settings,
        late: LateMemories,
        elsewhere: Forwarding | None = None,
    ) -> None:
        """elsewhere: the process that can write memories, where this one cannot."""
        self._catalogue = catalogue
        self._encoder = encoder
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
        self._waiting += 1
        WAITING.inc()
        try:
            per_chunk = self._encoder.description.memories_per_chunk
            query = await read_query(request, base.identity, self._settings, per_chunk, self._embedded)
            asked = time.perf_counter_ns()
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

    async def _embedded(self, texts: list[str]) -> np.ndarray:
        """Unit vectors of texts, float32 [n, dimension]."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._encoder.embed, texts)

    def _retrieved(self, base: KnowledgeBase, query: Query) -> tuple[Retrieved, int, int]:
        """In a thread: what the store finds, when it was asked and when it had answered, ns."""
        began = time.perf_counter_ns()
        return self._catalogue.store.retrieve(base, query), began, time.perf_counter_ns()
