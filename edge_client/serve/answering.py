"""From a checked request to an answer's events: its turn, its conversation, its end however it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import anyio
import anyio.to_thread
from fastapi import Request

from edge_client.aio import events_of
from edge_client.events import Event, Finished
from edge_client.serve.conversations import Conversations
from edge_client.serve.errors import ApiError
from edge_client.serve.grammar import JsonGrammars
from edge_client.serve.metrics import Metrics
from edge_client.serve.requests import ChatRequest, CompletionRequest
from edge_client.serve.settings import ServeSettings
from edge_client.serve.turns import Turns
from edge_client.stream import AnswerStream
from memory_model.bundle import Bundle


@dataclass(frozen=True)
class Begun:
    """An answer that may be iterated. over: gives its caches back; called when nobody computes it any more."""

    stream: AnswerStream
    over: Callable[[], None]


@dataclass(frozen=True)
class Prepared:
    """A request that nothing is wrong with. begin: takes the caches; called when it is this request's turn."""

    begin: Callable[[], Begun]


class Answering:
    """Answers requests with one model. One event loop's."""

    def __init__(self, bundle: Bundle, conversations: Conversations, settings: ServeSettings) -> None:
        self.bundle, self.conversations, self._settings = bundle, conversations, settings
        self.turns = Turns(settings.parallel, settings.waiting)
        self.metrics = Metrics(self.turns)
        self._grammars = JsonGrammars(
            bundle.folder / "tokenizer.json", bundle.tokenizer, bundle.config.vocabulary
        )

    def check_model(self, name: str | None) -> None:
        """Raise ApiError for a model that is not here."""
        if name is not None and name != self.bundle.manifest.name:
            raise ApiError(
                404, f"there is no model of that name here, only {self.bundle.manifest.name!r}",
                code="model_not_found", param="model",
            )  # fmt: skip

    async def prepare(self, request: ChatRequest | CompletionRequest) -> Prepared:
        """Check everything that can be checked before the request's turn; raises ApiError and Memory3Error."""
        self.turns.check()
        self.check_model(request.model)
        return await anyio.to_thread.run_sync(self._prepare, request)

    def _prepare(self, request: ChatRequest | CompletionRequest) -> Prepared:
        options = request.sampling(self._settings.default_max_tokens)
        if (schema := request.schema_asked) is not None:
            options["constraint"] = self._grammars.constraint(schema)
        asked = request.memory
        model = self.conversations.model(asked.bases)
        if isinstance(request, CompletionRequest):
            text = request.text
            model.check_text(text, **options)
            return Prepared(lambda: Begun(model.complete(text, memory=asked.mode, **options), lambda: None))
        *before, last = request.conversation()
        model.check([*before, last], **options)

        def begin() -> Begun:
            session = self.conversations.take(before, asked)
            stream = session.send(last["content"], **options)
            return Begun(stream, lambda: self.conversations.give(session, asked))

        return Prepared(begin)

    async def events(self, prepared: Prepared) -> AsyncGenerator[Event, None]:
        """The answer's events. Whoever closes this, or cancels its task, ends the answer within one step."""
        async with self.turns.turn():
            begun = await anyio.to_thread.run_sync(prepared.begin)
            events = events_of(begun.stream)
            complete = failed = False
            try:
                async for event in events:
                    if isinstance(event, Finished):
                        complete = True
                        self.metrics.answered(event)
                    yield event
            except Exception:
                failed = True
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    begun.stream.cancel()
                    await anyio.to_thread.run_sync(begun.stream.close)
                    if not failed:  # caches that a fault has touched are not used again
                        begun.over()
                    if not (complete or failed):
                        self.metrics.left()

    async def all_events(self, prepared: Prepared, request: Request) -> list[Event]:
        """The whole answer; ends early, with what there is, when the client has hung up."""
        found: list[Event] = []
        async with anyio.create_task_group() as tasks:

            async def hung_up() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    continue
                tasks.cancel_scope.cancel()

            tasks.start_soon(hung_up)
            async with aclosing(self.events(prepared)) as events:
                async for event in events:
                    found.append(event)
            tasks.cancel_scope.cancel()
        return found
