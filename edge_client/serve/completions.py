"""POST /v1/chat/completions and /v1/completions: OpenAI's answers, streamed or whole, with `memory` and `timings`."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse

from edge_client.events import Event, Finished, Recalled, Token
from edge_client.recall.recaller import MemoryRead
from edge_client.serve.answering import Answering
from edge_client.serve.errors import body_of
from edge_client.serve.requests import ChatRequest, CompletionRequest
from memory_model.tokenizer import Tokenizer

IGNORED = "X-Ignored-Fields"
"""The response's header that names the request's fields that mean nothing here."""
MOST_IGNORED = 1024
PING_S = 15
"""A stream without an event for so long sends a comment, so that no proxy takes it for dead."""


def completion_routes(answering: Answering) -> APIRouter:
    """Both routes. A request has its place in the queue until its response is sent, whole or not."""

    async def place() -> AsyncIterator[None]:
        with answering.queue.place():
            yield

    router = APIRouter(dependencies=[Depends(place)])
    name, tokenizer = answering.bundle.manifest.name, answering.bundle.tokenizer

    async def answer(form: _Form, request: Request) -> Response:
        stream = await answering.prepare(form.body)
        if form.body.stream:
            response: Response = event_stream(form.chunks(answering.events(stream)))
        else:
            response = JSONResponse(form.whole(await answering.all_events(stream, request)))
        if ignored := form.body.ignored():
            response.headers[IGNORED] = ", ".join(ignored)[:MOST_IGNORED].encode("ascii", "replace").decode()
        return response

    @router.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await answer(_Chat(body, name, tokenizer), request)

    @router.post("/v1/completions", response_model=None)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Continue a text."""
        return await answer(_Text(body, name, tokenizer), request)

    return router


def event_stream(values: AsyncGenerator[dict[str, Any], None]) -> EventSourceResponse:
    """A response of server-sent events, one JSON value each, the last one [DONE]; an error takes the place of the rest.

    A client that hangs up closes the generator.
    """

    async def sent() -> AsyncGenerator[dict[str, str], None]:
        async with aclosing(values):
            try:
                async for value in values:
                    yield {"data": json.dumps(value, ensure_ascii=False, separators=(",", ":"))}
            except Exception as error:  # the status was sent long ago
                yield {"data": json.dumps(body_of(error)[1])}
        yield {"data": "[DONE]"}

    return EventSourceResponse(sent(), ping=PING_S, sep="\n")


class _Form(ABC):
    """How one of the two routes spells an answer."""

    body: ChatRequest | CompletionRequest
    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, body: ChatRequest | CompletionRequest, model: str, tokenizer: Tokenizer) -> None:
        self.body, self._tokenizer = body, tokenizer
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._with_logprobs = body.top_tokens() is not None

    def opening(self) -> dict[str, Any] | None:
        """What the first chunk holds; None: there is no such chunk."""
        return None

    @abstractmethod
    def piece(self, text: str | None) -> dict[str, Any]:
        """The text of a chunk's choice; None: the chunk is about something else."""

    @abstractmethod
    def message(self, finished: Finished) -> dict[str, Any]:
        """What a whole answer's choice holds."""

    def last_piece(self, finished: Finished) -> dict[str, Any]:
        """What the chunk holds that ends the answer."""
        return self.piece(None)

    def reason(self, finished: Finished) -> str:
        """Why the answer ended, in OpenAI's words."""
        return "length" if finished.reason in ("length", "context") else "stop"

    @abstractmethod
    def logprobs(self, tokens: Sequence[Token], offset: int) -> dict[str, Any] | None:
        """Log-probabilities of tokens, the first of which is `offset` characters into the answer."""

    async def chunks(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[dict[str, Any], None]:
        """The values of a stream. Memories are told on chunks without text, which other clients pass over."""
        if (opening := self.opening()) is not None:
            yield self._chunk(opening)
        shown = 0
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Recalled):
                    if self.body.memory.provenance:
                        read = [chunk_json(event, texts=self.body.memory.texts)]
                        yield self._chunk(self.piece(None), memory={"chunks": read})
                elif isinstance(event, Token):
                    logprobs = self._logprobs([event], shown)
                    if event.text or logprobs:
                        yield self._chunk(self.piece(event.text), logprobs=logprobs)
                    shown += len(event.text)
                elif isinstance(event, Finished):
                    last = {
                        "memory": {"without_memory": event.without_memory, "refused": event.refused},
                        "timings": timings_json(event),
                    }
                    yield self._chunk(self.last_piece(event), finish=self.reason(event), **last)
                    if self.body.stream_options and self.body.stream_options.include_usage:
                        yield {
                            **self._head,
                            "object": self.chunk_object,
                            "choices": [],
                            "usage": usage_json(event),
                        }

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """The response without a stream; empty where the client has hung up, because nobody reads it."""
        finished = events[-1] if events else None
        if not isinstance(finished, Finished):
            return {}
        memory: dict[str, Any] = {"without_memory": finished.without_memory, "refused": finished.refused}
        if self.body.memory.provenance:
            last = {event.chunk: event for event in events if isinstance(event, Recalled)}
            memory["chunks"] = [chunk_json(event, texts=self.body.memory.texts) for event in last.values()]
        choice = {
            "index": 0, **self.message(finished), "finish_reason": self.reason(finished),
            "logprobs": self._logprobs([event for event in events if isinstance(event, Token)], 0),
        }  # fmt: skip
        return {
            **self._head, "object": self.whole_object, "choices": [choice], "usage": usage_json(finished),
            "memory": memory, "timings": timings_json(finished),
        }  # fmt: skip

    def _chunk(
        self, text: dict[str, Any], logprobs: object = None, finish: str | None = None, **more: object
    ) -> dict[str, Any]:
        choice = {"index": 0, **text, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head, "object": self.chunk_object, "choices": [choice], **more}

    def _logprobs(self, tokens: Sequence[Token], offset: int) -> dict[str, Any] | None:
        """Of all tokens but the one that ends the turn, if the request has them."""
        shown = [token for token in tokens if token.id not in self._tokenizer.stop_ids]
        return self.logprobs(shown, offset) if shown and self._with_logprobs else None


class _Chat(_Form):
    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, body: ChatRequest, model: str, tokenizer: Tokenizer) -> None:
        super().__init__(body, model, tokenizer)
        self._calls = bool(body.callable_tools())

    def opening(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": None if self._calls else ""}}

    def piece(self, text: str | None) -> dict[str, Any]:
        return {"delta": {} if text is None or self._calls else {"content": text}}

    def message(self, finished: Finished) -> dict[str, Any]:
        said: dict[str, Any] = {"role": "assistant", "content": finished.text, "refusal": None}
        if calls := self._called(finished):
            said |= {"content": None, "tool_calls": calls}
        return {"message": said}

    def last_piece(self, finished: Finished) -> dict[str, Any]:
        if not self._calls:
            return self.piece(None)
        calls = [{"index": 0, **call} for call in self._called(finished)]
        return {"delta": {"tool_calls": calls} if calls else {"content": finished.text}}

    def reason(self, finished: Finished) -> str:
        return "tool_calls" if self._called(finished) else super().reason(finished)

    def _called(self, finished: Finished) -> list[dict[str, Any]]:
        """The function call that the answer is; none where it is text, or was cut short."""
        if not self._calls or finished.reason != "end":
            return []
        call = json.loads(finished.text)
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
        return [{"id": f"call_{self._head['id'][-24:]}", "type": "function", "function": function}]

    def logprobs(self, tokens: Sequence[Token], offset: int) -> dict[str, Any]:
        def entry(text: str, logprob: float | None) -> dict[str, Any]:
            # A token may be part of a character; then its bytes are not known here.
            return {
                "token": text,
                "logprob": logprob,
                "bytes": None if "\ufffd" in text else list(text.encode()),
            }

        entries = [
            {
                **entry(self._tokenizer.piece(token.id), token.logprob),
                "top_logprobs": [entry(t.text, t.logprob) for t in token.top_logprobs],
            }
            for token in tokens
        ]
        return {"content": entries, "refusal": None}


class _Text(_Form):
    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def piece(self, text: str | None) -> dict[str, Any]:
        return {"text": text or ""}

    def message(self, finished: Finished) -> dict[str, Any]:
        return {"text": finished.text}

    def logprobs(self, tokens: Sequence[Token], offset: int) -> dict[str, Any]:
        texts = [self._tokenizer.piece(token.id) for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{t.text: t.logprob for t in token.top_logprobs} for token in tokens],
            "text_offset": [offset + sum(map(len, texts[:number])) for number in range(len(texts))],
        }


def chunk_json(recalled: Recalled, *, texts: bool) -> dict[str, Any]:
    """One chunk's memories. A late chunk is told twice: the second one, of the same number, counts."""
    found = recalled.recall
    return {
        **{name: getattr(recalled, name) for name in ("chunk", "generated", "position", "state", "kept")},
        **{name: getattr(found, name) for name in ("error", "service_error", "query")},
        "read": [_memory_json(memory, texts=texts) for memory in found.read],
        "times": {name: round(value, 3) for name, value in asdict(found.times).items()},
        "blocked_ms": round(recalled.blocked.total_ms, 3),
    }


def _memory_json(memory: MemoryRead, *, texts: bool) -> dict[str, Any]:
    found = {**asdict(memory), "memory_id": f"{memory.memory_id:016x}", "score": round(memory.score, 4)}
    if not texts:
        del found["text"]
    return found


def timings_json(finished: Finished) -> dict[str, Any]:
    """The answer's statistics; times in milliseconds."""
    s = finished.statistics
    names = (
        "first_token_ms",
        "tokens_per_s",
        "decoder_ms",
        "overhead_ms",
        "recall_ms",
        "blocked_ms_per_chunk",
    )
    rounded = {name: round(getattr(s, name), 3) for name in names}
    return {**rounded, "recalls": s.recalls, "states": dict(s.states)}


def usage_json(finished: Finished) -> dict[str, Any]:
    """Token counts; the cached ones are those whose key-values were still there."""
    s = finished.statistics
    return {
        "prompt_tokens": s.prompt_tokens,
        "completion_tokens": s.generated_tokens,
        "total_tokens": s.prompt_tokens + s.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": s.reused_tokens},
    }
