"""Health that tells the truth: it follows the store, the disk, warm-up and draining, looked at again and again."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health

from memory_service.access.catalogue import Catalogue
from memory_service.access.guarded_store import GuardedStore
from memory_service.ops.logs import logger
from memory_service.ops.metrics import KNOWLEDGE_BASES, READY, STORE_UP

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

RETRIEVAL = "memory.v1.Retrieval"
INGESTION = "memory.v1.Ingestion"
KNOWLEDGE_BASES_SERVICE = "memory.v1.KnowledgeBases"
MODELS = "memory.v1.Models"
SERVICES = (RETRIEVAL, INGESTION, KNOWLEDGE_BASES_SERVICE, MODELS)


class Health:
    """Statuses of the services. NOT_SERVING until `watch` has seen a store that answers; for good after `drain`.

    "" and Retrieval, Ingestion, KnowledgeBases: the store answers; Ingestion also: the disk has room.
    Models: always, once the model is loaded. A damaged knowledge base stops nothing but itself.
    """

    def __init__(self, interval_s: float, timeout_s: float) -> None:
        """interval_s: between two looks; timeout_s: the longest a store may take to answer one."""
        self.servicer = health.HealthServicer()
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._asking = ThreadPoolExecutor(1, "health")
        self._answer: asyncio.Future[None] | None = None
        self._statuses: dict[str, int] = {}
        self._watching: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """NOT_SERVING: the service listens, its store and model are being loaded."""
        for service in ("", *SERVICES):
            await self._set(service, False)

    async def watch(self, store: GuardedStore, catalogue: Catalogue) -> None:
        """Looks once, then keeps looking until `close`."""
        await self._look(store, catalogue)
        self._watching = asyncio.create_task(self._keep_looking(store, catalogue))

    async def drain(self) -> None:
        """NOT_SERVING for good."""
        READY.set(0)
        await self.servicer.enter_graceful_shutdown()

    async def close(self) -> None:
        """Stops looking; a store that does not answer is not waited for."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._asking.shutdown(wait=False, cancel_futures=True)

    async def _keep_looking(self, store: GuardedStore, catalogue: Catalogue) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._look(store, catalogue)
            except Exception as error:
                logger().error("health_not_looked_at", exc_info=error)

    async def _look(self, store: GuardedStore, catalogue: Catalogue) -> None:
        problem = await self._problem(store)
        up = problem == ""
        if up != (self._statuses.get(RETRIEVAL) == SERVING):
            logger().log(30 if problem else 20, "store_state", answers=up, problem=problem)
        STORE_UP.set(up)
        READY.set(up)
        for service in ("", RETRIEVAL, KNOWLEDGE_BASES_SERVICE):
            await self._set(service, up)
        await self._set(MODELS, True)
        await self._set(INGESTION, up and not store.disk.look())
        if up:
            states = {"ready": 0, "damaged": 0, "mismatched": 0}
            for base in store.knowledge_bases():
                states[
                    "damaged" if base.problem else "mismatched" if catalogue.mismatch(base) else "ready"
                ] += 1
            for state, count in states.items():
                KNOWLEDGE_BASES.labels(state).set(count)

    async def _problem(self, store: GuardedStore) -> str:
        """Why the store does not answer; empty when it does. One question at a time: a stuck one stays the answer."""
        if self._answer is None:
            self._answer = asyncio.get_running_loop().run_in_executor(self._asking, store.ping)
        done, _ = await asyncio.wait({self._answer}, timeout=self._timeout_s)
        if not done:
            return f"no answer within {self._timeout_s:.0f} s"
        answer, self._answer = self._answer, None
        error = answer.exception()
        return "" if error is None else str(error) or type(error).__name__

    async def _set(self, service: str, serving: bool) -> None:
        status = SERVING if serving else NOT_SERVING
        if self._statuses.get(service) != status:
            self._statuses[service] = status
            await self.servicer.set(service, status)
