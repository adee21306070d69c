"""Ctrl-C as a wish that is told to somebody, instead of an exception in the midst of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def told_of_interrupts(tell: Callable[[], None]) -> Iterator[None]:
    """While the block lasts, Ctrl-C calls `tell` in a thread of its own, which may take locks, and raises nothing.

    Outside the main thread, where Python handles no signals, the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_: int, __: FrameType | None) -> None:
        threading.Thread(target=tell, name="memory3-interrupt", daemon=True).start()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
