"""POST /v1/completions: OpenAI's older interface, a text that is gone on with as it is."""

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
from edge_client.serve.requests import CompletionRequest
from edge_client.serve.sse import event_stream
from memory_model.tokenizer import Tokenizer


def completion_routes(answering: Answering) -> APIRouter:
    """The one route of this file."""
    router = APIRouter()
    model, tokenizer = answering.bundle.manifest.name, answering.bundle.tokenizer

    @router.post("/v1/completions", response_model=None)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Go on with a text."""
        prepared = await answering.prepare(body)
        head = {
            "id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": model,
        }  # fmt: skip
        if body.stream:
            return event_stream(_stream(answering, prepared, body, head, tokenizer))
        return JSONResponse(_whole(await answering.all_events(prepared, request), body, head, tokenizer))

    return router


async def _stream(
    answering: Answering, prepared: Prepared, body: CompletionRequest, head: dict[str, Any], tokenizer: Tokenizer
) -> AsyncGenerator[dict[str, Any], None]:  # fmt: skip
    def chunk(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": more.pop("logprobs", None), "finish_reason": finish}
        return {**head, "choices": [choice], **more}

    shown = 0
    async with aclosing(answering.events(prepared)) as events:
        async for event in events:
            if isinstance(event, Recalled):
                if body.memory.provenance:
                    yield chunk("", memory={"chunks": [chunk_json(event, texts=body.memory.texts)]})
            elif isinstance(event, Token):
                logprobs = _logprobs([event], tokenizer, shown) if body.logprobs is not None else None
                if event.text or logprobs:
                    yield chunk(event.text, logprobs=logprobs)
                shown += len(event.text)
            else:
                memory = {"without_memory": event.without_memory}
                yield chunk("", finish_reason(event), memory=memory, timings=timings_json(event))
                if body.stream_options and body.stream_options.include_usage:
                    yield {**head, "choices": [], "usage": usage_json(event)}


def _whole(
    events: Sequence[Event], body: CompletionRequest, head: dict[str, Any], tokenizer: Tokenizer
) -> dict[str, Any]:
    finished = events[-1] if events else None
    if not isinstance(finished, Finished):
        return {}  # the client hung up: nobody reads this
    tokens = [event for event in events if isinstance(event, Token)]
    logprobs = _logprobs(tokens, tokenizer, 0) if body.logprobs is not None else None
    choice = {
        "index": 0,
        "text": finished.text,
        "logprobs": logprobs,
        "finish_reason": finish_reason(finished),
    }
    memory: dict[str, Any] = {"without_memory": finished.without_memory}
    if body.memory.provenance:
        told = {event.chunk: event for event in events if isinstance(event, Recalled)}
        memory["chunks"] = [chunk_json(event, texts=body.memory.texts) for event in told.values()]
    return {
        **head, "choices": [choice], "usage": usage_json(finished), "memory": memory, "timings": timings_json(finished),
    }  # fmt: skip


def _logprobs(tokens: Sequence[Token], tokenizer: Tokenizer, offset: int) -> dict[str, Any] | None:
    said = [token for token in tokens if token.id not in tokenizer.stop_ids]
    if not said:
        return None
    texts = [tokenizer.decode([token.id]) for token in said]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in said],
        "top_logprobs": [{t.text: t.logprob for t in token.top_logprobs} for token in said],
        "text_offset": offsets,
    }
