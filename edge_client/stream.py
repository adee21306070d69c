"""`AnswerStream`: the events of one answer as an iterator that other threads may cancel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from edge_client.cancellation import Cancellation
from edge_client.errors import SessionBusy
from edge_client.events import Event
from edge_client.generate.answer import Answer

CLOSING_S = 5.0
"""How long closing waits for a step that is under way in another thread."""


class AnswerStream(Iterator[Event]):
    """Events of an answer, computed while they are asked for. Ends after Finished.

    One thread at a time may iterate; a second one gets SessionBusy. `cancel` may be called from any thread:
    within one step of the decoder the iteration gets Finished with reason "cancelled". Leaving the loop early
    (break, an exception, close, dropping it) ends the answer as well, without that event.

    done: called once, when the answer is over in whatever way.
    """

    def __init__(self, answer: Answer, cancellation: Cancellation, done: Callable[[Answer], None]) -> None:
        self._answer = answer
        self._cancellation = cancellation
        self._events = answer.events()
        self._done = done
        self._reader = threading.Lock()  # held by the thread that iterates
        self._step = threading.Lock()  # held while anybody computes or closes
        self._over = False

    def __iter__(self) -> AnswerStream:
        return self

    def __next__(self) -> Event:
        if not self._reader.acquire(blocking=False):
            raise SessionBusy("another thread is reading this answer: one thread at a time")
        try:
            with self._step:
                try:
                    return next(self._events)
                except BaseException:
                    self._finish()
                    raise
        finally:
            self._reader.release()

    @property
    def over(self) -> bool:
        """Whether the answer is over."""
        return self._over

    def cancel(self) -> None:
        """No more of this answer: the decoder makes at most the step that it is in. Any thread; idempotent."""
        self._cancellation.cancel()

    def wait_for_step(self) -> None:
        """Return when no thread is inside a step (at the latest after some seconds)."""
        if self._step.acquire(timeout=CLOSING_S):
            self._step.release()

    def close(self) -> None:
        """Cancel, wait for the step that is under way in another thread, and give the caches back."""
        self.cancel()
        if self._step.acquire(timeout=CLOSING_S):
            try:
                self._finish()
            finally:
                self._step.release()

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self._events.close()  # type: ignore[attr-defined]  # a generator
            self._done(self._answer)

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Nobody can be iterating what nobody holds.
        if not getattr(self, "_over", True):
            self._cancellation.cancel()
            self._finish()
