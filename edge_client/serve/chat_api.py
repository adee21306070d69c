"""POST /v1/chat/completions: OpenAI's answer to a conversation, streamed or whole, with `memory` and `timings`."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from edge_client.events import Event, Finished, Recalled, Token
from edge_client.serve.answering import Answering, Prepared
from edge_client.serve.provenance import chunk_json, finish_reason, timings_json, usage_json
from edge_client.serve.requests import ChatRequest
from edge_client.serve.sse import event_stream
from memory_model.tokenizer import Tokenizer


def chat_routes(answering: Answering) -> APIRouter:
    """The one route of this file."""
    router = APIRouter()
    model, tokenizer = answering.bundle.manifest.name, answering.bundle.tokenizer

    @router.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        prepared = await answering.prepare(body)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        if body.stream:
            return event_stream(_stream(answering, prepared, body, head, tokenizer))
        return JSONResponse(_whole(await answering.all_events(prepared, request), body, head, tokenizer))

    return router


async def _stream(
    answering: Answering, prepared: Prepared, body: ChatRequest, head: dict[str, Any], tokenizer: Tokenizer
) -> AsyncGenerator[dict[str, Any], None]:
    """Chunks. What was recalled rides on chunks with an empty delta, so that clients who do not know it see nothing."""

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": more.pop("logprobs", None), "finish_reason": finish}
        return {**head, "object": "chat.completion.chunk", "choices": [choice], **more}

    yield chunk({"role": "assistant", "content": ""})
    async with aclosing(answering.events(prepared)) as events:
        async for event in events:
            if isinstance(event, Recalled):
                if body.memory.provenance:
                    yield chunk({}, memory={"chunks": [chunk_json(event, texts=body.memory.texts)]})
            elif isinstance(event, Token):
                logprobs = _logprobs([event], tokenizer) if body.logprobs else None
                if event.text or logprobs:
                    yield chunk({"content": event.text}, logprobs=logprobs)
            else:
                memory = {"without_memory": event.without_memory}
                yield chunk({}, finish_reason(event), memory=memory, timings=timings_json(event))
                if body.stream_options and body.stream_options.include_usage:
                    yield {
                        **head,
                        "object": "chat.completion.chunk",
                        "choices": [],
                        "usage": usage_json(event),
                    }


def _whole(
    events: Sequence[Event], body: ChatRequest, head: dict[str, Any], tokenizer: Tokenizer
) -> dict[str, Any]:
    finished = events[-1] if events else None
    if not isinstance(finished, Finished):
        return {}  # the client hung up: nobody reads this
    tokens = [event for event in events if isinstance(event, Token)]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": finished.text, "refusal": None},
        "logprobs": _logprobs(tokens, tokenizer) if body.logprobs else None,
        "finish_reason": finish_reason(finished),
    }
    memory: dict[str, Any] = {"without_memory": finished.without_memory}
    if body.memory.provenance:
        told = {event.chunk: event for event in events if isinstance(event, Recalled)}
        memory["chunks"] = [chunk_json(event, texts=body.memory.texts) for event in told.values()]
    return {
        **head, "object": "chat.completion", "choices": [choice], "usage": usage_json(finished),
        "memory": memory, "timings": timings_json(finished),
    }  # fmt: skip


def _logprobs(tokens: Sequence[Token], tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Of all tokens but the one that ends the turn."""
    said = [token for token in tokens if token.id not in tokenizer.stop_ids]
    entries = []
    for token in said:
        top = [_entry(t.text, t.logprob) for t in token.top_logprobs]
        entries.append({**_entry(tokenizer.decode([token.id]), token.logprob), "top_logprobs": top})
    return {"content": entries, "refusal": None} if entries else None


def _entry(text: str, logprob: float | None) -> dict[str, Any]:
    # A token may be part of a character; then its bytes are not known here.
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}
