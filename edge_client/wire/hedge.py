"""A call that takes longer than calls do is sent once more, on another connection; the first answer wins.

Retrieve is idempotent, so nothing is lost but work: what is asked twice is bounded by a budget, and a service
that says it is overloaded is never asked twice. A connection that breaks under a call is a reason as well.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edge_client.cancellation import Cancellation
from edge_client.errors import (
    DeadlineExceeded,
    RecallCancelled,
    RetrievalError,
    ServiceUnavailable,
)
from edge_client.wire.retrieval import Answer
from memory_model.errors import InvalidInput

REMEMBERED = 64
"""Answers whose times tell what is usual."""
ENOUGH = 8
"""Answers before they tell anything; until then a quarter of the deadline is long."""
SHORTEST_S = 0.01
"""No call is repeated sooner: a busy device delays its own answers by as much."""
BUDGET, EARNED = 5.0, 0.1
"""Second calls that may be made in a row, and what every answer adds: one call in ten in the long run."""
_GRACE_S = 1.0  # gRPC ends its calls itself; this is for the day when it does not


class PendingCall(Protocol):
    """A call under way, as the client's `begin` returns it."""

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back once, from any thread, when `result` would not wait."""

    def cancel(self) -> None:
        """End it."""

    def result(self) -> Answer:
        """The answer, or a RetrievalError raised."""
        ...


Begin = Callable[[int, float], PendingCall]
"""(number of the connection, timeout in seconds) -> the call under way."""


@dataclass(frozen=True)
class HedgeStatistics:
    """calls: asked. hedged: sent a second time. won: answered by the second. refused: not sent, for the budget."""

    calls: int = 0
    hedged: int = 0
    won: int = 0
    refused: int = 0


class Hedge:
    """What is usual for one service, and the budget. Thread-safe.

    after_s: seconds without an answer after which a call is sent again; None estimates twice the 95th
    percentile of recent answers, at most half the deadline; infinity never sends again.
    """

    def __init__(self, after_s: float | None = None) -> None:
        if after_s is not None and not after_s > 0:
            raise InvalidInput(f"after_s must be positive or None, not {after_s}")
        self._after_s = after_s
        self._lock = threading.Lock()
        self._recent_s: deque[float] = deque(maxlen=REMEMBERED)
        self._budget = BUDGET
        self._calls = self._hedged = self._won = self._refused = 0

    def ask(
        self, begin: Begin, timeout_s: float, cancellation: Cancellation | None = None
    ) -> tuple[Answer, int]:
        """The first answer and how many calls were made for it (1 or 2), within timeout_s.

        Raises RecallCancelled when `cancellation` was set, else the RetrievalError of the last call to fail.
        """
        started = time.monotonic()
        after_s = self.after_s(timeout_s)
        ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # number of a call, None: cancelled
        calls: list[PendingCall] = []

        def call() -> None:
            number = len(calls)
            calls.append(begin(number, timeout_s - (time.monotonic() - started)))
            calls[number].when_done(lambda: ended.put(number))

        if cancellation is not None:
            cancellation.when_cancelled(lambda: ended.put(None))
        failed = 0
        try:
            call()
            while True:
                may_hedge = len(calls) == 1 and after_s < timeout_s
                until_s = after_s if may_hedge else timeout_s + _GRACE_S
                try:
                    number = ended.get(timeout=max(until_s - (time.monotonic() - started), 0.0))
                except queue.Empty:
                    if not may_hedge:
                        raise DeadlineExceeded(f"no answer within {timeout_s:.3g} s") from None
                    if time.monotonic() - started < timeout_s and self._affordable():
                        call()
                    else:
                        after_s = math.inf
                    continue
                if number is None:
                    raise RecallCancelled("nobody waits for the memories any more")
                try:
                    answer = calls[number].result()
                except RetrievalError as error:
                    failed += 1
                    # Asked again at once if the connection broke, for what is left of the time.
                    left_s = timeout_s - (time.monotonic() - started)
                    if (
                        len(calls) == 1
                        and left_s > 0
                        and after_s < math.inf
                        and _broke(error)
                        and self._affordable()
                    ):
                        call()
                    if failed == len(calls):
                        raise
                    continue
                self._answered(time.monotonic() - started, won=number > 0)
                return answer, len(calls)
        finally:
            with self._lock:
                self._calls += 1
                self._hedged += len(calls) > 1
            for each in calls:
                each.cancel()  # without effect on those that ended

    def after_s(self, timeout_s: float) -> float:
        """Seconds after which a call of this timeout is late enough to be sent again."""
        if self._after_s is not None:
            return self._after_s
        with self._lock:
            recent = sorted(self._recent_s)
        if len(recent) < ENOUGH:
            return timeout_s / 4
        usual = recent[min(math.ceil(0.95 * len(recent)), len(recent)) - 1]
        return min(max(2 * usual, SHORTEST_S), timeout_s / 2)

    def statistics(self) -> HedgeStatistics:
        """Counts since the start."""
        with self._lock:
            return HedgeStatistics(self._calls, self._hedged, self._won, self._refused)

    def _affordable(self) -> bool:
        with self._lock:
            if self._budget < 1:
                self._refused += 1
                return False
            self._budget -= 1
            return True

    def _answered(self, seconds: float, *, won: bool) -> None:
        with self._lock:
            self._recent_s.append(seconds)
            self._budget = min(self._budget + EARNED, BUDGET)
            self._won += won


def _broke(error: RetrievalError) -> bool:
    # Its subclasses (overloaded, certificate refused) are answers, which would be the same again.
    return type(error) is ServiceUnavailable
