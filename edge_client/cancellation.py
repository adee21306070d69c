"""`Cancellation`: one thread tells others that a result is no longer needed."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Cancelled(Exception):
    """What was computed is no longer needed."""


class Cancellation:
    """Set once, by `cancel`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def check(self) -> None:
        """Raise Cancelled if it was called."""
        if self._cancelled:
            raise Cancelled

    def cancel(self) -> None:
        """Set it and call the callbacks, in this thread."""
        with self._lock:
            self._cancelled = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def when_cancelled(self, callback: Callable[[], None]) -> None:
        """Call back at `cancel`, or at once if it was called before."""
        with self._lock:
            if not self._cancelled:
                self._callbacks.append(callback)
                return
        callback()
