"""The line before the decoder: first come, first served; who leaves gives up the place at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from edge_client.serve.errors import ApiError

RETRY_AFTER_S = 2.0


class Turns:
    """Lets `parallel` answers be computed at a time and `waiting` more stand in line. One event loop's."""

    def __init__(self, parallel: int, waiting: int) -> None:
        self._parallel, self._longest = parallel, waiting
        self._semaphore = anyio.Semaphore(parallel)
        self._inside = 0

    @property
    def running(self) -> int:
        """Answers that are being computed."""
        return self._parallel - self._semaphore.value

    @property
    def waiting(self) -> int:
        """Answers in line."""
        return self._semaphore.statistics().tasks_waiting

    def check(self) -> None:
        """Raise ApiError where the line is full."""
        if self._inside >= self._parallel + self._longest:
            raise ApiError(
                429, f"{self._inside} answers are under way or in line: ask again in a moment",
                code="queue_full", kind="rate_limit_error", retry_after_s=RETRY_AFTER_S,
            )  # fmt: skip

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Stand in line, then hold a place while the block lasts. A cancelled task leaves the line."""
        self.check()
        self._inside += 1
        try:
            async with self._semaphore:
                yield
        finally:
            self._inside -= 1
