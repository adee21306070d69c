"""When memories are requested, how long anybody waits for them, and when a failing service is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from edge_client.errors import RetrievalError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Pause after a failure; it doubles with every further one, up to the longest."""


class RecallMode(str, Enum):
    """How decoding and recalling share time. Every mode reads the same memories, only later or never.

    overlap: requests `lead_tokens` before a chunk ends and never waits; what comes late is swapped in late.
    exact: waits at every chunk's end, as the paper does. off: never requests.
    """

    overlap = "overlap"
    exact = "exact"
    off = "off"


@dataclass(frozen=True)
class RecallPolicy:
    """When a session requests memories and how long it waits; EdgeSettings checks the values.

    lead_tokens: generated tokens before a chunk's end at which `overlap` requests the next chunk's memories.
    deadline_s: longest life of a recall. A prompt waits so long for its memories, `exact` at every chunk's end too.
    """

    mode: RecallMode = RecallMode.overlap
    lead_tokens: int = 16
    deadline_s: float = 2.0


class Breaker:
    """Stops calls to a failing service: opens at a failure for a pause that doubles, closes at an answer. Thread-safe.

    Calls that were under way together fail together: of these only the first failure counts.
    clock: seconds, replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._error = RetrievalError()
        self._pause_s = self._until = 0.0
        self._failures = 0

    def open_error(self) -> RetrievalError | None:
        """Why no call may be made now, with the seconds that are left; None where one may be made."""
        with self._lock:
            left_s = self._until - self._clock() if self._pause_s else 0.0
            if left_s <= 0:
                return None
            message = f"{self._error} (no new call for {left_s:.1f} s)"
            return RetrievalError(message, reason=self._error.reason, unavailable=self._error.unavailable)

    def begin(self) -> int:
        """The number under which a call that starts now reports a failure."""
        return self._failures

    def failed(self, call: int, error: RetrievalError) -> None:
        """A call failed, as every other would now. call: its number from `begin`."""
        with self._lock:
            if call != self._failures:
                return
            self._failures += 1
            self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            self._until = self._clock() + max(self._pause_s, min(error.retry_after_s or 0.0, LONGEST_PAUSE_S))
            self._error = RetrievalError(str(error), reason=error.reason, unavailable=error.unavailable)

    def answered(self) -> None:
        """The service answered, perhaps with a refusal of the request."""
        with self._lock:
            self._pause_s = 0.0
