"""The asynchronous twins of the SDK. Answers are computed by the synchronous code in threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from edge_client.events import Event, Finished, Result, Token
from edge_client.model import EdgeModel
from edge_client.recall.policy import RecallMode
from edge_client.session import ChatSession
from edge_client.settings import EdgeSettings
from edge_client.stream import AnswerStream
from memory_model.bundle import Bundle
from memory_model.chat import Message

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edge_client.generate.sampling import SamplingOptions
    from edge_client.settings import EdgeOptions

AHEAD = 8
"""Events that the thread computes before the loop has taken them."""


class AsyncAnswerStream(AsyncIterator[Event]):
    """As `AnswerStream`: the events of an answer, its text, or its result.

        async for delta in stream.deltas: ...

    Cancelling the task that reads, or leaving its loop, ends the answer within one step of the decoder.
    """

    def __init__(self, stream: AnswerStream) -> None:
        self._stream = stream
        self._events = events_of(stream)

    def __aiter__(self) -> AsyncAnswerStream:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    @property
    def deltas(self) -> AsyncIterator[str]:
        """The answer's text, piece by piece."""
        return (event.text async for event in self if isinstance(event, Token) and event.text)

    async def text(self) -> str:
        """The answer's whole text."""
        return (await self.result()).text

    async def result(self) -> Result:
        """The whole answer; raises InvalidInput if it was closed early."""
        async for _ in self:
            pass
        return self._stream.finished()

    def cancel(self) -> None:
        """End the answer; its iteration gets Finished with reason "cancelled"."""
        self._stream.cancel()

    async def close(self) -> None:
        """End the answer and give the caches back."""
        await self._events.aclose()  # type: ignore[attr-defined]  # an asynchronous generator
        await asyncio.to_thread(self._stream.close)  # one that was never read


class AsyncChatSession:
    """A conversation for `asyncio`. Made by `AsyncEdgeModel.session` and `AsyncEdgeModel.load_session`.

        async for event in session.send("What is the highest point of Benin?"):
            ...

    One task at a time; a second `send` while an answer is being read gets SessionBusy. What the reader of a
    cancelled answer did not receive is no part of the conversation.
    """

    def __init__(self, session: ChatSession) -> None:
        self._session = session

    @property
    def messages(self) -> list[Message]:
        """A copy of the conversation."""
        return self._session.messages

    @property
    def tokens(self) -> int:
        """Tokens of the conversation that are in the cache."""
        return self._session.tokens

    def send(
        self, text: str, *, memory: RecallMode | str | None = None, **options: Unpack[SamplingOptions]
    ) -> AsyncAnswerStream:
        """As `ChatSession.send`; arguments are checked at once, before the first event is awaited."""
        return AsyncAnswerStream(self._session.send(text, memory=memory, **options))

    def take_back(self) -> str:
        """As `ChatSession.take_back`."""
        return self._session.take_back()

    def cancel(self) -> None:
        """End the answer that is under way; its iteration gets Finished with reason "cancelled"."""
        self._session.cancel()

    async def save(self, path: str | Path) -> None:
        """As `ChatSession.save`, without blocking the loop."""
        await asyncio.to_thread(self._session.save, path)


class AsyncEdgeModel:
    """Answers for `asyncio`.

        async with await AsyncEdgeModel.open("build/bundle", service="127.0.0.1:7430") as model:
            print((await model.ask("What is the capital of Norway?")).text)

    The loop is never blocked by decoding: every answer has a thread while it lasts. Tasks may use one model at
    the same time, and so may several loops. Cancelling a task ends its answer within one step of the decoder.
    """

    def __init__(self, model: EdgeModel) -> None:
        self._model = model

    @classmethod
    async def open(
        cls, bundle: str | Path | None = None, service: str | None = None, *, settings: EdgeSettings | None = None,
        **options: Unpack[EdgeOptions],
    ) -> AsyncEdgeModel:  # fmt: skip
        """As `EdgeModel.open`, in a thread: verifying a bundle reads all of it."""
        return cls(await asyncio.to_thread(EdgeModel.open, bundle, service, settings=settings, **options))

    @property
    def bundle(self) -> Bundle:
        """The opened bundle."""
        return self._model.bundle

    def with_knowledge_base(self, name: str) -> AsyncEdgeModel:
        """As `EdgeModel.with_knowledge_base`."""
        return AsyncEdgeModel(self._model.with_knowledge_base(name))

    def generate(
        self, messages: str | Sequence[Message], *, memory: RecallMode | str | None = None,
        **options: Unpack[SamplingOptions],
    ) -> AsyncAnswerStream:  # fmt: skip
        """As `EdgeModel.generate`; arguments are checked at once, before the first event is awaited."""
        return AsyncAnswerStream(self._model.generate(messages, memory=memory, **options))

    def complete(
        self, text: str, *, memory: RecallMode | str | None = None, **options: Unpack[SamplingOptions]
    ) -> AsyncAnswerStream:
        """As `EdgeModel.complete`; arguments are checked at once."""
        return AsyncAnswerStream(self._model.complete(text, memory=memory, **options))

    async def ask(
        self, messages: str | Sequence[Message], *, memory: RecallMode | str | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Result:  # fmt: skip
        """As `EdgeModel.ask`."""
        return await self.generate(messages, memory=memory, **options).result()

    def check(self, messages: Sequence[Message], **options: Unpack[SamplingOptions]) -> int:
        """As `EdgeModel.check`."""
        return self._model.check(messages, **options)

    async def session(
        self, system: str | None = None, *, messages: Sequence[Message] = (),
        memory: RecallMode | str | None = None, lead_tokens: int | None = None,
    ) -> AsyncChatSession:  # fmt: skip
        """As `EdgeModel.session`; the prefix is read in a thread."""
        session = await asyncio.to_thread(
            self._model.session, system, messages=messages, memory=memory, lead_tokens=lead_tokens
        )
        return AsyncChatSession(session)

    async def load_session(
        self, path: str | Path, *, memory: RecallMode | str | None = None
    ) -> AsyncChatSession:
        """As `EdgeModel.load_session`."""
        return AsyncChatSession(await asyncio.to_thread(self._model.load_session, path, memory=memory))

    async def close(self) -> None:
        """As `EdgeModel.close`, without blocking the loop."""
        await asyncio.to_thread(self._model.close)

    async def __aenter__(self) -> AsyncEdgeModel:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def events_of(stream: AnswerStream) -> AsyncIterator[Event]:
    """The events of an answer that a thread of its own computes, at most `AHEAD` of them in advance.

    An answer that is left early is recorded with the tokens that were taken, not with those computed in advance.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Event | BaseException] = asyncio.Queue()
    ahead = threading.Semaphore(AHEAD)

    def compute() -> None:
        over = False
        while not over:
            found: Event | BaseException
            try:
                found = stream.compute()
                ahead.acquire()
            except BaseException as error:
                found = error
            over = isinstance(found, Finished | BaseException)
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
                loop.call_soon_threadsafe(queue.put_nowait, found)

    thread = threading.Thread(target=compute, name="memory3-answer", daemon=True)
    thread.start()
    received, over = 0, False
    try:
        while True:
            event = await queue.get()
            if isinstance(event, BaseException):
                raise event
            ahead.release()
            received += isinstance(event, Token)
            if isinstance(event, Finished):
                over = True
                stream.close()  # nothing is under way
                yield event
                return
            yield event
    finally:
        if not over:
            stream.cancel()
            for _ in range(AHEAD):
                ahead.release()
            await asyncio.shield(asyncio.to_thread(_end, stream, thread, received))


def _end(stream: AnswerStream, thread: threading.Thread, received: int) -> None:
    """Wait for the thread that computes; the reader has received so many tokens."""
    thread.join()
    stream.close(received)
