"""What all ingestion of a process may take at once, and how much of it one tenant: calls under way, and memory.

A call over the budget is refused with OVERLOADED and a time to try again, before its documents are read. A document
over it is refused alone; one that is larger than the budget is taken while nothing else is held. For one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

from memory_service.errors import Overloaded
from memory_service.telemetry.metrics import INGESTING_BYTES, REFUSED

_RETRY_AFTER_S = 1.0


class Budget:
    """Calls and bytes of all tenants; the operator, whose tenant is empty, may use all of both."""

    def __init__(self, calls: int, memory_bytes: int, tenant_share: float) -> None:
        self._calls, self._memory_bytes, self._share = calls, memory_bytes, tenant_share
        self._calls_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()

    @contextlib.contextmanager
    def call(self, tenant: str) -> Iterator[None]:
        """Around a call that ingests; raises Overloaded."""
        most = max(1, int(self._calls * self._share)) if tenant else self._calls
        under_way = self._calls_of.total()
        if under_way >= self._calls or self._calls_of[tenant] >= most:
            raise overloaded(f"{under_way} calls ingest already: try again later, or send documents in one stream")
        self._calls_of[tenant] += 1
        try:
            yield
        finally:
            self._calls_of[tenant] -= 1

    def fits(self, tenant: str, more: int, mine: int) -> bool:
        """Whether so many bytes may be taken by who holds `mine`; always where nobody else of the tenant holds any."""
        held, of_tenant = self._bytes_of.total(), self._bytes_of[tenant]
        alone = held == mine
        share = self._memory_bytes * (self._share if tenant else 1.0)
        return alone or (held + more <= self._memory_bytes and (of_tenant == mine or of_tenant + more <= share))

    def add(self, tenant: str, more: int) -> None:
        """Takes bytes, or gives them back where `more` is negative."""
        self._bytes_of[tenant] += more
        INGESTING_BYTES.set(self._bytes_of.total())


class Holding:
    """What one stream holds of the budget's memory; `close` gives it back."""

    def __init__(self, budget: Budget, tenant: str) -> None:
        self._budget, self._tenant = budget, tenant
        self._held = 0
        self._released = asyncio.Event()
        self._closed = False

    async def take(self, more: int, mine: int = 0) -> None:
        """Takes bytes for a document, which holds `mine`: waits for the stream's own; raises Overloaded for others'."""
        while not self._budget.fits(self._tenant, more, mine):
            if self._held <= mine:
                raise overloaded("other documents take the memory for ingestion: send this one again later")
            self._released.clear()
            await self._released.wait()
        if self._closed:
            return
        self._held += more
        self._budget.add(self._tenant, more)

    def release(self, size: int) -> None:
        """Gives bytes back."""
        self._held -= size
        self._budget.add(self._tenant, -size)
        self._released.set()

    def close(self) -> None:
        """Gives all back, for good."""
        self.release(self._held)
        self._closed = True


def overloaded(message: str) -> Overloaded:
    """The error, counted, with a second to wait."""
    REFUSED.labels(Overloaded.reason).inc()
    error = Overloaded(message)
    error.retry_after_s = _RETRY_AFTER_S
    return error
