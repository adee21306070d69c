"""From a checked request to an answer's events: the queue before the decoder, its knowledge bases, how it ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from functools import lru_cache

import anyio
import anyio.to_thread
from fastapi import Request

from edge_client.events import Event
from edge_client.model import EdgeModel
from edge_client.serve.errors import ApiError
from edge_client.serve.requests import ChatRequest, CompletionRequest, JsonGrammars
from edge_client.stream import AnswerStream

MOST_KNOWLEDGE_BASES = 4
"""Other than the server's own, whose connections are kept."""
RETRY_AFTER_S = 2.0


class Queue:
    """Lets `parallel` answers be computed at a time and `waiting` more wait, in their order. One event loop's."""

    def __init__(self, parallel: int, waiting: int) -> None:
        self.parallel, self._most = parallel, parallel + waiting
        self.turn = anyio.Semaphore(parallel)
        self._inside = 0

    @property
    def running(self) -> int:
        """Answers that are being computed."""
        return self.parallel - self.turn.value

    @property
    def waiting(self) -> int:
        """Answers that wait."""
        return self.turn.statistics().tasks_waiting

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the queue while the block lasts; raises ApiError where it is full."""
        if self._inside >= self._most:
            raise ApiError(
                429, f"{self._inside} answers are being computed or wait: try again in a moment",
                code="queue_full", kind="rate_limit_error", retry_after_s=RETRY_AFTER_S,
            )  # fmt: skip
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1


class Answering:
    """Answers requests with one model, and with the same model over the knowledge bases they name. One event loop's."""

    def __init__(self, model: EdgeModel, knowledge_base: str, queue: Queue) -> None:
        self.model, self.queue = model, queue
        self._grammars, self._knowledge_base = JsonGrammars(model.bundle), knowledge_base
        self._reading = lru_cache(MOST_KNOWLEDGE_BASES)(model.with_knowledge_base)

    async def prepare(self, request: ChatRequest | CompletionRequest) -> AnswerStream:
        """An answer of which nothing is computed yet; raises ApiError and Memory3Error for all that can be checked."""
        return await anyio.to_thread.run_sync(self._prepare, request)

    def _prepare(self, request: ChatRequest | CompletionRequest) -> AnswerStream:
        options, memory = request.sampling(self._grammars), request.memory
        name = memory.knowledge_base or self._knowledge_base
        model = self.model if name == self._knowledge_base else self._reading(name)
        if isinstance(request, CompletionRequest):
            return model.complete(request.text, memory=memory.mode, **options)
        return model.generate(request.conversation(), memory=memory.mode, **options)

    async def events(self, stream: AnswerStream) -> AsyncGenerator[Event, None]:
        """The answer's events, when it is its turn. Closing this, or cancelling its task, ends the answer in a step."""
        try:
            async with self.queue.turn:
                async for event in stream:
                    yield event
        finally:
            with anyio.CancelScope(shield=True):
                stream.cancel()
                await anyio.to_thread.run_sync(stream.close)

    async def all_events(self, stream: AnswerStream, request: Request) -> list[Event]:
        """The whole answer; where the client hangs up, what there is of it."""
        found: list[Event] = []
        failed: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def hung_up() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    continue
                tasks.cancel_scope.cancel()

            tasks.start_soon(hung_up)
            try:
                async with aclosing(self.events(stream)) as events:
                    async for event in events:
                        found.append(event)
            except Exception as error:  # leaves the group as it is, not inside an ExceptionGroup
                failed = error
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return found
