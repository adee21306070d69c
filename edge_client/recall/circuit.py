"""Whether a service that did not answer is asked again: an outage costs one deadline, not one a chunk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""A service that does not answer is not asked again for this long; the pause doubles up to the longest."""


class Circuit:
    """Opens at a failure, for a pause that doubles with every failure in a row; closes at an answer. Thread-safe.

    clock: seconds, replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._open_until = 0.0
        self._why = ""

    def why_not(self) -> str:
        """Why the service should not be asked now, with the seconds that are left; empty when it may be."""
        with self._lock:
            left_s = self._open_until - self._clock() if self._pause_s else 0.0
            return f"{self._why} (not asked again for {left_s:.1f} s)" if left_s > 0 else ""

    def failed(self, why: str, retry_after_s: float | None = None) -> None:
        """The service did not answer; why: name and message of the error. retry_after_s: the least pause it wants."""
        with self._lock:
            self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            self._open_until = self._clock() + max(self._pause_s, min(retry_after_s or 0.0, LONGEST_PAUSE_S))
            self._why = why

    def answered(self) -> None:
        """The service answered, be it with a refusal."""
        with self._lock:
            self._pause_s = 0.0
