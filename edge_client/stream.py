"""`AnswerStream`: the events of one answer as an iterator that other threads may cancel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from edge_client.errors import Cancellation, SessionBusy
from edge_client.events import Event, Finished, Result, Token
from edge_client.generate.loop import Answer
from memory_model.errors import InvalidInput


class AnswerStream(Iterator[Event]):
    """Events of an answer, each computed when it is requested. Ends after Finished.

        print(stream.text())                    # the whole text
        for delta in stream.deltas: ...         # its pieces as they come
        for event in stream: ...                # Recalled, Token, Finished
        stream.result()                         # text, memories, statistics
        async for delta in stream.adeltas: ...  # in asyncio: a thread computes, the loop stays free
        async for event in stream: ...
        await stream.aresult()

    One thread at a time may iterate; a second one gets SessionBusy. `cancel` may be called from any thread:
    within one step of the decoder the iteration gets Finished with reason "cancelled". Leaving the loop early
    (break, an exception, close, dropping it) ends the answer as well, without that event. So does cancelling the task
    that reads; what it did not receive then is no part of the conversation.

    done: called once, when the answer is over in whatever way.
    """

    def __init__(self, answer: Answer, cancellation: Cancellation, done: Callable[[Answer], None]) -> None:
        self._answer = answer
        self._cancellation = cancellation
        self._events = answer.events()
        self._done = done
        self._step = threading.Lock()  # held while a thread computes or closes
        self._begun = self._over = False
        self._end: Finished | None = None

    def __iter__(self) -> AnswerStream:
        return self

    def __next__(self) -> Event:
        # Who closes has cancelled before and holds the lock for a moment; anybody else who holds it computes.
        if not self._step.acquire(blocking=self._cancellation.cancelled()):
            raise SessionBusy("another thread is reading this answer: one thread at a time")
        self._begun = True
        try:
            event = next(self._events)
            if isinstance(event, Finished):
                self._end = event
                self._finish()
            return event
        except BaseException:
            self._finish()
            raise
        finally:
            self._step.release()

    def __aiter__(self) -> AsyncGenerator[Event, None]:
        return _events_of(self)

    async def aresult(self) -> Result:
        """As `result`, in asyncio."""
        async for _ in self:
            pass
        return self.finished()

    @property
    def deltas(self) -> Iterator[str]:
        """The answer's text, piece by piece."""
        return (event.text for event in self if isinstance(event, Token) and event.text)

    @property
    def adeltas(self) -> AsyncIterator[str]:
        """As `deltas`, in asyncio."""
        return (event.text async for event in self if isinstance(event, Token) and event.text)

    def text(self) -> str:
        """The answer's whole text."""
        return self.result().text

    def result(self) -> Result:
        """The whole answer, events that were read before included; raises InvalidInput if it was closed early."""
        for _ in self:
            pass
        return self.finished()

    def finished(self) -> Result:
        """The result of an answer that has ended; raises InvalidInput if it was closed before its end."""
        if (end := self._end) is None:
            raise InvalidInput("the answer was closed before its end: there is no result")
        return Result(end.text, end.reason, end.statistics, end.without_memory, self._answer.recalled, end.refused)

    @property
    def over(self) -> bool:
        """Whether the answer is over."""
        return self._over

    @property
    def abandoned(self) -> bool:
        """Whether nothing of it was read yet, or it was cancelled: ending it takes nothing from a reader."""
        return not self._begun or self._cancellation.cancelled()

    def cancel(self) -> None:
        """End the answer after the step that the decoder is in, at most. Any thread; idempotent."""
        self._cancellation.cancel()

    def close(self, received: int | None = None) -> None:
        """Cancel, wait for a step that is under way in another thread, and give the caches back. Idempotent.

        received: tokens that the reader got; only these count as said. Not to be called by a signal handler, which may
        interrupt the very step that is waited for: `cancel` there.
        """
        self.cancel()
        with self._step:
            if received is not None and not self._over:
                self._answer.keep(received)
            self._finish()

    def wait_for_step(self) -> None:
        """Return when no thread is inside a step."""
        with self._step:
            pass

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


async def _events_of(stream: AnswerStream) -> AsyncGenerator[Event, None]:
    """The events of an answer that a thread of its own computes.

    An answer that is left early is recorded with the tokens that were taken.
    """
    loop, thread, received = asyncio.get_running_loop(), ThreadPoolExecutor(1, "memory3-answer"), 0
    try:
        while (event := await loop.run_in_executor(thread, next, stream, None)) is not None:
            received += isinstance(event, Token)
            yield event
    finally:
        if not stream.over:
            stream.cancel()
            await asyncio.shield(loop.run_in_executor(thread, stream.close, received))
        thread.shutdown(wait=False)
