"""Health that follows the store and draining, looked at again and again."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health

from memory_service.api.interceptors import SERVICES
from memory_service.service import Runtime
from memory_service.stores.store import Store
from memory_service.telemetry.logs import logger
from memory_service.telemetry.metrics import DISK_FREE_BYTES, READY, STORE_UP

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
MODELS = "memory.v1.Models"


class Health:
    """Statuses of the services. NOT_SERVING until `watch` has seen a store that answers; for good after `drain`.

    Models: SERVING. All others and "": the store answers. A damaged knowledge base stops nothing but itself.
    """

    def __init__(self, interval_s: float) -> None:
        """interval_s: between two looks, and the longest a store may take to answer one."""
        self.servicer = health.HealthServicer()
        self._interval_s = interval_s
        self._asking = ThreadPoolExecutor(1, "health")
        self._answer: asyncio.Future[None] | None = None
        self.up: bool | None = None  # whether the store answered when looked at last; None before
        self._watching: asyncio.Task[None] | None = None

    async def watch(self, runtime: Runtime, folder: Path | None, looked: Callable[[], None]) -> None:
        """Looks once, then keeps looking until `close`.

        folder: of an embedded store, whose free space is measured. looked: called each time that the store answered.
        """
        await self._look(runtime, folder)

        async def keep_looking() -> None:
            while True:
                await asyncio.sleep(self._interval_s)
                try:
                    await self._look(runtime, folder)
                    if self.up:
                        looked()
                except Exception as error:
                    logger().error("health_not_looked_at", exc_info=error)

        self._watching = asyncio.create_task(keep_looking())

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

    async def _look(self, runtime: Runtime, folder: Path | None) -> None:
        problem = await self._problem(runtime.store)
        up = problem == ""
        if up != self.up:
            self.up = up
            logger().log(20 if up else 30, "store_state", answers=up, problem=problem)
        STORE_UP.set(up)
        READY.set(up)
        if folder is not None:
            with contextlib.suppress(OSError):  # the store itself says what is wrong with its folder
                DISK_FREE_BYTES.set(shutil.disk_usage(folder).free)
        for service in ("", *SERVICES):
            await self.servicer.set(service, SERVING if up or service == MODELS else NOT_SERVING)

    async def _problem(self, store: Store) -> str:
        """Why the store does not answer; empty if it does. A check that is still running is not repeated."""
        if self._answer is None:
            self._answer = asyncio.get_running_loop().run_in_executor(self._asking, store.ping)
        done, _ = await asyncio.wait({self._answer}, timeout=self._interval_s)
        if not done:
            return f"no answer within {self._interval_s:.0f} s"
        answer, self._answer = self._answer, None
        error = answer.exception()
        return "" if error is None else str(error) or type(error).__name__
