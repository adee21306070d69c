"""A wish to stop that one thread tells another: asked for, or told at once by a callback."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Cancellation:
    """Set once, by `cancel`. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Set it and call the callbacks, in this thread."""
        with self._lock:
            self._cancelled = True
            self._set.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds, or when it is set."""
        self._set.wait(seconds)

    def when_cancelled(self, callback: Callable[[], None]) -> None:
        """Call back at `cancel`, or at once if that has been."""
        with self._lock:
            if not self._cancelled:
                self._callbacks.append(callback)
                return
        callback()
