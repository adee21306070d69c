"""POST /v1/chat/completions and /v1/completions: OpenAI's answers, streamed or whole, with `memory` and `timings`.

request -> admitted to the queue -> model with the requested knowledge bases -> its turn -> events -> JSON
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import lru_cache
from typing import Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse

from edge_client.model import EdgeModel
from edge_client.recall.policy import RecallMode
from edge_client.retrieval import names_of
from edge_client.serve.refusals import ApiError, JsonRoute, body_of
from edge_client.serve.requests import ChatRequest, CompletionRequest, Custom, Grammars, Tolerant
from edge_client.serve.schema import ChatCompletion, TextCompletion, ok
from edge_client.settings import EdgeSettings
from edge_client.stream import AnswerStream, Event, Finished, Recalled, Span, Token
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle

MOST_KNOWLEDGE_BASES = 4
"""Knowledge bases, besides the server's own, whose connections stay open."""
RETRY_AFTER_S = 2.0
IGNORED = "X-Ignored-Fields"
"""Response header with the names of ignored request fields."""
MOST_IGNORED = 1024
PING_S = 15
"""Seconds without an event after which a stream sends a comment, so that proxies keep it open."""
TIMINGS = ("first_token_ms", "tokens_per_s", "decoder_ms", "overhead_ms", "recall_ms", "blocked_ms_per_chunk")


class Queue:
    """Computes up to `parallel` answers at a time; up to `waiting` more wait in order. Belongs to one event loop."""

    def __init__(self, parallel: int, waiting: int) -> None:
        self.parallel, self._most = parallel, parallel + waiting
        self.turn = anyio.Semaphore(parallel)
        self._inside = 0

    @property
    def running(self) -> int:
        """Number of answers being computed."""
        return self.parallel - self.turn.value

    @property
    def waiting(self) -> int:
        """Number of answers that wait."""
        return self.turn.statistics().tasks_waiting

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request in the queue while the block lasts; raises ApiError (429) if the queue is full."""
        if self._inside >= self._most:
            raise ApiError(
                429,
                f"{self._inside} answers are being computed or wait: try again in a moment",
                code="queue_full",
                kind="rate_limit_error",
                retry_after_s=RETRY_AFTER_S,
            )
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1


class Answering:
    """Answers requests with one model and the knowledge bases that they name. Belongs to one event loop."""

    def __init__(self, model: EdgeModel, edge: EdgeSettings, queue: Queue) -> None:
        self.model, self.queue = model, queue
        self._grammars, self._usual = Grammars(model.bundle), edge.knowledge_base
        self._named = "knowledge_base" in edge.model_fields_set
        self._reading = lru_cache(MOST_KNOWLEDGE_BASES)(model.with_knowledge_base)
        self._known: frozenset[str] = frozenset()  # knowledge bases found at the last check

    def prepare(self, request: ChatRequest | CompletionRequest) -> AnswerStream:
        """Check a request and return its answer, not yet started; raises ApiError, Memory3Error."""
        options, memory = request.sampling(self._grammars), request.memory
        name = memory.knowledge_base or self._usual
        if self.model.engine.policy_with(memory.mode).mode is not RecallMode.off:
            self.check(name)
        model = self.reading(name)
        if isinstance(request, CompletionRequest):
            if memory.document:
                raise InvalidInput("memory.document: a question about a document is a chat completion")
            return model.complete(request.text, memory=memory.mode, **options)
        return model.generate(request.conversation(), memory=memory.mode, about=memory.document, **options)

    def reading(self, names: str) -> EdgeModel:
        """The model with these knowledge bases of the service; empty: the server's own."""
        return self.model if names in ("", self._usual) else self._reading(names)

    def check(self, names: str) -> None:
        """Raise ApiError (404) if neither this device nor the service has a knowledge base.

        The server's own is not checked where nobody has named it: it may be ingested while the server runs.
        """
        if (names != self._usual or self._named) and not self._known.issuperset(names_of(names)):
            try:
                self._known = self.model.engine.require_knowledge_bases(names)
            except InvalidInput as error:
                raise ApiError(404, str(error), code="knowledge_base_not_found") from error

    async def admitted(self) -> AsyncIterator[None]:
        """A dependency of routes: the request counts in the queue while it lasts; raises ApiError (429)."""
        with self.queue.admitted():
            yield

    async def events(self, stream: AnswerStream) -> AsyncGenerator[Event, None]:
        """The answer's events, once it is its turn. Closing the generator or cancelling its task ends the answer."""
        try:
            async with self.queue.turn:
                async for event in stream:
                    if isinstance(event, Recalled) and event.recall.reason == "KNOWLEDGE_BASE_NOT_FOUND":
                        self._known = frozenset()  # it was deleted: the next request checks again
                    yield event
        finally:
            with anyio.CancelScope(shield=True):
                stream.cancel()
                await anyio.to_thread.run_sync(stream.close)

    async def all_events(self, stream: AnswerStream, request: Request) -> list[Event]:
        """All events of the answer; if the client disconnects, those until then."""
        found: list[Event] = []
        failed: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def cancel_on_disconnect() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    continue
                tasks.cancel_scope.cancel()

            tasks.start_soon(cancel_on_disconnect)
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


def completion_routes(answering: Answering) -> APIRouter:
    """Both routes. A request counts in the queue until its response is sent, complete or not."""
    router = APIRouter(route_class=JsonRoute, dependencies=[Depends(answering.admitted)])
    bundle = answering.model.bundle

    async def answer(form: _Text, request: Request) -> Response:
        stream = await anyio.to_thread.run_sync(answering.prepare, form.body)
        if form.body.stream:
            response: Response = event_stream(form.chunks(answering.events(stream)))
        else:
            response = JSONResponse(form.whole(await answering.all_events(stream, request)))
        return with_ignored(response, form.body)

    @router.post("/v1/chat/completions", response_model=None, responses=ok(ChatCompletion, streams=True))
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await answer(_Chat(body, bundle), request)

    @router.post("/v1/completions", response_model=None, responses=ok(TextCompletion, streams=True))
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Continue a text."""
        return await answer(_Text(body, bundle), request)

    return router


def with_ignored(response: Response, body: Tolerant) -> Response:
    """The response with a header that names the request's ignored fields, if there are any."""
    if ignored := body.ignored():
        shown = ", ".join(ignored)[:MOST_IGNORED]
        response.headers[IGNORED] = "".join(c if c.isascii() and c.isprintable() else "?" for c in shown).strip()
    return response


def as_line(value: dict[str, Any]) -> str:
    """JSON in ASCII: many clients take U+0085, U+2028 and U+2029 within an event for the end of its line."""
    return json.dumps(value, separators=(",", ":"))


def event_stream(values: AsyncGenerator[dict[str, Any], None]) -> EventSourceResponse:
    """Server-sent events, each a JSON value, the last one [DONE]; an error ends the stream early. Closes `values`."""

    async def sent() -> AsyncGenerator[dict[str, str], None]:
        async with aclosing(values):
            try:
                async for value in values:
                    yield {"data": as_line(value)}
            except Exception as error:  # the status was sent long ago
                yield {"data": as_line(body_of(error)[1])}
        yield {"data": "[DONE]"}

    return EventSourceResponse(sent(), ping=PING_S, sep="\n")


class _Text:
    """Formats an answer for /v1/completions; the base class of both routes."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"
    opening: dict[str, Any] | None = None
    """Content of the first chunk; None sends no such chunk."""
    echoed = ""
    """What stands before the answer."""

    def __init__(self, body: ChatRequest | CompletionRequest, bundle: Bundle) -> None:
        self.body, self.tokenizer = body, bundle.tokenizer
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._head = {"id": self.id, "created": int(time.time()), "model": bundle.manifest.name}
        if isinstance(body, CompletionRequest) and body.echo:
            self.echoed = body.text
            self.opening = self.piece(self.echoed)

    def piece(self, text: str | None) -> dict[str, Any]:
        """The text of a chunk's choice; None if the chunk has no text."""
        return {"text": text or ""}

    def last_piece(self, finished: Finished) -> dict[str, Any]:
        """Content of the last chunk."""
        return {**self.piece(None), **self.annotations(finished)}

    def message(self, finished: Finished) -> dict[str, Any]:
        """Content of the choice in a complete response."""
        return {"text": self.echoed + finished.text, **self.annotations(finished)}

    def annotations(self, finished: Finished) -> dict[str, Any]:
        """What each part of the answer was read from, as OpenAI's file citations; empty unless requested."""
        if not self.body.memory.citations:
            return {}
        found = [file_citation(finished.text, s, self.body.memory.texts) for s in finished.spans]
        for one in found:
            one["start_index"] += len(self.echoed)
            one["end_index"] += len(self.echoed)
        return {"annotations": found}

    def reason(self, finished: Finished) -> str:
        """OpenAI's `finish_reason`."""
        return "length" if finished.reason in ("length", "context") else "stop"

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        """Log-probabilities of tokens if the request has `logprobs`."""
        return None

    async def chunks(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a streamed response. Memories are in chunks without text, which other clients ignore."""
        if self.opening is not None:
            yield self._chunk(self.opening)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Recalled):
                    # A late recall is reported twice: the second report replaces the first.
                    recalled = event.as_json(texts=self.body.memory.texts)
                    yield self._chunk(self.piece(None), memory={"chunks": [recalled]})
                elif isinstance(event, Token):
                    logprobs = self.logprobs([event])
                    if event.text or logprobs:
                        yield self._chunk(self.piece(event.text), logprobs=logprobs)
                elif isinstance(event, Finished):
                    yield self._chunk(self.last_piece(event), finish=self.reason(event), **_outcome(event))
                    if self.body.stream_options.get("include_usage"):
                        usage = {"choices": [], "usage": _usage(event)}
                        yield {**self._head, "object": self.chunk_object, **usage}

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """The response without a stream; empty if the client has disconnected."""
        finished = events[-1] if events else None
        if not isinstance(finished, Finished):
            return {}
        outcome = whole_outcome(finished, events, texts=self.body.memory.texts)
        logprobs = self.logprobs([event for event in events if isinstance(event, Token)])
        ending = {"finish_reason": self.reason(finished), "logprobs": logprobs}
        choice = {"index": 0, **self.message(finished), **ending}
        return {**self._head, "object": self.whole_object, "choices": [choice], "usage": _usage(finished), **outcome}

    def _chunk(
        self, text: dict[str, Any], logprobs: object = None, finish: str | None = None, **more: object
    ) -> dict[str, Any]:
        choice = {"index": 0, **text, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head, "object": self.chunk_object, "choices": [choice], **more}


class _Chat(_Text):
    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"
    body: ChatRequest

    def __init__(self, body: ChatRequest, bundle: Bundle) -> None:
        super().__init__(body, bundle)
        self._calls = bool(body.callable_tools())
        self.opening = {"delta": {"role": "assistant", "content": None if self._calls else ""}}

    def piece(self, text: str | None) -> dict[str, Any]:
        return {"delta": {} if text is None or self._calls else {"content": text}}

    def last_piece(self, finished: Finished) -> dict[str, Any]:
        if not self._calls:
            return {"delta": self.annotations(finished)}
        calls = [{"index": 0, **call} for call in self._called(finished)]
        return {"delta": {"tool_calls": calls} if calls else {"content": finished.text}}

    def message(self, finished: Finished) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": finished.text, "refusal": None}
        if calls := self._called(finished):
            message |= {"content": None, "tool_calls": calls}
        else:
            message |= self.annotations(finished)
        return {"message": message}

    def reason(self, finished: Finished) -> str:
        return "tool_calls" if self._called(finished) else super().reason(finished)

    def _called(self, finished: Finished) -> list[dict[str, Any]]:
        """The call in the answer; empty if the answer is text or was cut off."""
        call = self.body.called(finished.text) if finished.reason == "end" else None
        if call is None:
            return []
        kind = "custom" if isinstance(call, Custom) else "function"
        return [{"id": f"call_{self.id[-24:]}", "type": kind, kind: call.model_dump(exclude_unset=True)}]

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            # A token may be part of a character: only its bytes are exact.
            text, raw = self.tokenizer.piece(token), self.tokenizer.piece_bytes(token)
            return {"token": text, "logprob": logprob, "bytes": list(raw)}

        ends = self.tokenizer.stop_ids
        entries = [
            {**entry(t.id, t.logprob), "top_logprobs": [entry(o.id, o.logprob) for o in t.top_logprobs]}
            for t in tokens
            if t.id not in ends
        ]
        return {"content": entries, "refusal": None} if entries and self.body.logprobs else None


def file_citation(text: str, span: Span, texts: bool) -> dict[str, Any]:
    """A span as an annotation; indices count characters. texts: with the passage itself."""
    memory, passage = span.memory, span.passage
    quote = memory.text[slice(*passage)] if texts and memory.text and passage else None
    return {
        "type": "file_citation",
        "text": text[span.start : span.end],
        "start_index": span.start,
        "end_index": span.end,
        "file_citation": {
            "file_id": f"{memory.memory_id:016x}",
            "filename": memory.source,
            "quote": quote,
            "passage": passage,
            "score": round(span.score, 4),
        },
    }


def whole_outcome(finished: Finished, events: Sequence[Event], *, texts: bool) -> dict[str, Any]:
    """Memory outcome and timings of a whole answer, with the last state of each chunk's memories."""
    last = {event.chunk: event for event in events if isinstance(event, Recalled)}
    outcome = _outcome(finished)
    outcome["memory"]["chunks"] = [event.as_json(texts=texts) for event in last.values()]
    return outcome


def _outcome(finished: Finished) -> dict[str, Any]:
    """Memory outcome and timings of the answer; times in milliseconds."""
    s = finished.statistics
    timings = {name: round(getattr(s, name), 3) for name in TIMINGS}
    return {
        "memory": {
            "without_memory": finished.without_memory,
            "error": finished.memory_error,
            "refused": finished.refused,
            "verdict": finished.verdict,
        },
        "timings": {
            **timings,
            "recalls": s.recalls,
            "states": dict(s.states),
            "drafted_tokens": s.drafted_tokens,
            "accepted_tokens": s.accepted_tokens,
        },
    }


def _usage(finished: Finished) -> dict[str, Any]:
    """Token counts; cached tokens are those whose key-values were reused."""
    s = finished.statistics
    return {
        "prompt_tokens": s.prompt_tokens,
        "completion_tokens": s.generated_tokens,
        "total_tokens": s.prompt_tokens + s.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": s.reused_tokens},
    }
