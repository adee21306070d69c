"""The asynchronous twin of `ChatSession`, and how an answer's events reach an event loop.

An answer is computed by the synchronous code in a thread of its own; nothing of it is repeated here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edge_client.events import Event
from edge_client.session import ChatSession
from edge_client.stream import AnswerStream
from memory_model.chat import Message

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edge_client.generate.options import SamplingOptions

AHEAD = 8
"""Events that the thread computes before the loop has taken them."""


class AsyncChatSession:
    """A conversation for `asyncio`. Made by `AsyncEdgeModel.session` and `AsyncEdgeModel.load_session`.

        async for event in session.send("What is the highest point of Benin?"):
            ...

    One task at a time; a second `send` while an answer is under way gets SessionBusy. Cancelling the task, or
    leaving the loop, ends the answer within one step of the decoder, and the caches are free again by then.
    """

    def __init__(self, session: ChatSession) -> None:
        self._session = session

    @property
    def messages(self) -> list[Message]:
        """A copy of the conversation."""
        return self._session.messages

    def send(
        self, text: str, *, memory: bool = True, **options: Unpack[SamplingOptions]
    ) -> AsyncIterator[Event]:
        """As `ChatSession.send`; arguments are checked at once, before the first event is awaited."""
        return events_of(self._session.send(text, memory=memory, **options))

    def take_back(self) -> str:
        """As `ChatSession.take_back`."""
        return self._session.take_back()

    def cancel(self) -> None:
        """End the answer that is under way; its iteration gets Finished with reason "cancelled"."""
        self._session.cancel()

    async def save(self, path: str | Path) -> None:
        """As `ChatSession.save`, without blocking the loop."""
        await asyncio.to_thread(self._session.save, path)


async def events_of(stream: AnswerStream) -> AsyncIterator[Event]:
    """The events of an answer that a thread of its own computes, at most `AHEAD` of them in advance."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()
    ahead = threading.Semaphore(AHEAD)

    def compute() -> None:
        last: BaseException | None = None
        try:
            for event in stream:
                ahead.acquire()
                loop.call_soon_threadsafe(queue.put_nowait, event)
        except BaseException as error:
            last = error
        stream.close()
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(queue.put_nowait, last)

    thread = threading.Thread(target=compute, name="memory3-answer", daemon=True)
    thread.start()
    over = False
    try:
        while (event := await queue.get()) is not None:
            if isinstance(event, BaseException):
                over = True
                raise event
            ahead.release()
            yield event
        over = True
    finally:
        if not over:
            stream.cancel()
            for _ in range(AHEAD):
                ahead.release()
            await asyncio.shield(asyncio.to_thread(thread.join))
