"""Work that Ctrl-C may end at any moment: it is done in a thread of its own, and the interrupt hits who waits for it.

Python raises KeyboardInterrupt in the main thread wherever that is. Inside gRPC that is fatal: a call that was
registered, but whose polling thread was not started yet, is never over, and closing its channel waits for it for ever.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from edge_client.cancellation import Cancellation

ENDING_S = 5.0
"""How long an interrupted caller waits for the work to end; it is then left to end by itself."""
# An interrupt that comes just before the wait, or hits another thread, does not end it: Python looks for it in between.
_LOOK_S = 0.2
T = TypeVar("T")


def interruptible(work: Callable[[Cancellation], T]) -> T:
    """What `work` returns or raises, done in another thread; whoever is interrupted while waiting cancels it.

    work: looks at its cancellation often, and lets it end what it waits for.
    """
    cancellation = Cancellation()
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((work(cancellation), None))
        except BaseException as error:
            outcome.put((None, error))

    thread = threading.Thread(target=run, name="memory3-work", daemon=True)
    try:
        thread.start()
        while True:
            with contextlib.suppress(queue.Empty):
                value, error = outcome.get(timeout=_LOOK_S)
                break
    except BaseException:
        cancellation.cancel()
        if thread.ident is not None:
            thread.join(ENDING_S)
        raise
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # there is one where there is no error
