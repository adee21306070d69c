"""/v1/responses and /v1/conversations: OpenAI's Responses API, with `memory` and `timings`.

A response is answered as a chat completion is, and may go on from an earlier one or belong to a conversation. Both are
kept in this process alone, the latest `KEPT_BYTES` of them; nothing is written to a disk.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse

from edge_client.serve.completions import PING_S, Answering, as_line, file_citation, whole_outcome, with_ignored
from edge_client.serve.items import Item, Items, ResponseRequest, new_id
from edge_client.serve.refusals import ApiError, JsonRoute, body_of
from edge_client.serve.requests import ChatRequest, Custom
from edge_client.serve.schema import (
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
    ItemList,
    ResponseObject,
    ok,
)
from edge_client.stream import Event, Finished, Span, Token

KEPT_BYTES = 16 << 20
"""Of responses and conversations, as JSON; the ones that were used longest ago are forgotten."""


_CALLS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}
_ECHOED = (
    "instructions",
    "previous_response_id",
    "max_output_tokens",
    "text",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "store",
    "metadata",
    "temperature",
    "top_p",
)
Limit = Annotated[int, Query(ge=1, le=100)]
Order = Literal["asc", "desc"]


@dataclass
class Kept:
    """A response or a conversation. items: all that a next response goes on from; before: how many came before it."""

    body: dict[str, Any]
    items: list[Item] = field(default_factory=list)
    before: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return len(json.dumps([self.body, *(item.model_dump() for item in self.items)]))


class Memo:
    """Responses and conversations by id. Belongs to one event loop."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._kept, self._sizes, self._most = OrderedDict[str, Kept](), dict[str, int](), most

    def keep(self, kept: Kept) -> None:
        """Add or replace one; others are forgotten for it."""
        name = kept.body["id"]
        self._kept[name], self._sizes[name] = kept, kept.size
        self._kept.move_to_end(name)
        while sum(self._sizes.values()) > self._most and len(self._kept) > 1:
            self.drop(next(iter(self._kept)))

    def __contains__(self, name: object) -> bool:
        """Whether one of this id is kept."""
        return name in self._kept

    def get(self, name: str, kind: str, status: int = 404, code: str = "not_found") -> Kept:
        """Raises ApiError where there is none."""
        found = self._kept.get(name)
        if found is None or found.body["object"] != kind:
            raise ApiError(status, f"there is no {kind} {name!r}: it was deleted, forgotten or never kept", code=code)
        self._kept.move_to_end(name)
        return found

    def resolved(self, items: Iterable[Item]) -> list[Item]:
        """The items, with the kept ones in place of references to them; raises ApiError where one is not kept."""
        return [self._item(item.id) if item.type == "item_reference" else item for item in items]

    def _item(self, name: str) -> Item:
        for kept in reversed(self._kept.values()):
            for item in reversed(kept.items):
                if item.id == name:
                    return item
        raise ApiError(404, f"there is no item {name!r}: it was deleted, forgotten or never kept", code="not_found")

    def drop(self, name: str) -> None:
        """Forget one that is there."""
        del self._kept[name], self._sizes[name]


def response_routes(answering: Answering) -> APIRouter:
    """All routes. A request of an answer counts in the queue until its response is sent, complete or not."""
    router, memo = APIRouter(route_class=JsonRoute), Memo()

    def past(body: ResponseRequest) -> Kept | None:
        """What the response goes on from."""
        if body.previous_response_id:
            return memo.get(body.previous_response_id, "response", 400, "previous_response_not_found")
        return memo.get(body.conversation_id, "conversation") if body.conversation_id else None

    @router.post(
        "/v1/responses",
        response_model=None,
        responses=ok(ResponseObject, streams=True),
        dependencies=[Depends(answering.admitted)],
    )
    async def respond(body: ResponseRequest, request: Request) -> Response:
        """Answer an input, or a conversation that is kept here."""
        before = past(body)
        items = list(before.items) if before else []
        own = memo.resolved(body.items)
        chat = body.chat([*items, *own])
        stream = await anyio.to_thread.run_sync(answering.prepare, chat)

        def finished(answer: dict[str, Any]) -> None:
            """Keep what was answered."""
            new = [item.named() for item in own] + [Item.model_validate(one) for one in answer["output"]]
            if body.store:
                memo.keep(Kept(answer, [*items, *new], len(items)))
            if before is not None and body.conversation_id in memo:  # it may have been deleted meanwhile
                before.items += new
                memo.keep(before)

        form = ResponseForm(body, chat, answering.model.bundle.manifest.name)
        if body.stream:
            response: Response = _typed_events(form, form.events(answering.events(stream), finished))
        else:
            answer = form.whole(await answering.all_events(stream, request))
            if answer:
                finished(answer)
            response = JSONResponse(answer)
        return with_ignored(response, body)

    @router.get("/v1/responses/{response_id}", responses=ok(ResponseObject))
    async def read(response_id: str) -> dict[str, Any]:
        """A response that is kept."""
        return memo.get(response_id, "response").body

    @router.get("/v1/responses/{response_id}/input_items", responses=ok(ItemList))
    async def inputs(response_id: str, limit: Limit = 20, after: str = "", order: Order = "desc") -> dict[str, Any]:
        """A page of a response's input, without what came before; the latest item first unless `order` is asc."""
        kept = memo.get(response_id, "response")
        return _listed(kept.items[kept.before : len(kept.items) - len(kept.body["output"])], limit, after, order)

    @router.delete("/v1/responses/{response_id}", responses=ok(DeletedResponse))
    async def forget(response_id: str) -> dict[str, Any]:
        """Forget a response."""
        memo.get(response_id, "response")
        memo.drop(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post("/v1/conversations", responses=ok(ConversationObject))
    async def begin(body: Items) -> dict[str, Any]:
        """Begin a conversation, with items or without."""
        about = {"id": new_id("conv"), "object": "conversation", "created_at": int(time.time())}
        items = [item.named() for item in memo.resolved(body.items)]
        memo.keep(kept := Kept({**about, "metadata": body.metadata}, items))
        return kept.body

    @router.get("/v1/conversations/{conversation_id}", responses=ok(ConversationObject))
    async def conversation(conversation_id: str) -> dict[str, Any]:
        """A conversation that is kept."""
        return memo.get(conversation_id, "conversation").body

    @router.delete("/v1/conversations/{conversation_id}", responses=ok(DeletedConversation))
    async def end(conversation_id: str) -> dict[str, Any]:
        """Forget a conversation; the responses that belonged to it stay."""
        memo.get(conversation_id, "conversation")
        memo.drop(conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    @router.get("/v1/conversations/{conversation_id}/items", responses=ok(ItemList))
    async def items_of(
        conversation_id: str, limit: Limit = 20, after: str = "", order: Order = "desc"
    ) -> dict[str, Any]:
        """A page of a conversation's items; the latest first unless `order` is asc."""
        return _listed(memo.get(conversation_id, "conversation").items, limit, after, order)

    @router.post("/v1/conversations/{conversation_id}/items", responses=ok(ItemList))
    async def add(conversation_id: str, body: Items) -> dict[str, Any]:
        """Add items to a conversation."""
        kept = memo.get(conversation_id, "conversation")
        kept.items += (added := [item.named() for item in memo.resolved(body.items)])
        memo.keep(kept)
        return _listed(added, len(added), "", "asc")

    return router


class ResponseForm:
    """Formats an answer as a response, whole or as the events of a stream."""

    def __init__(self, body: ResponseRequest, chat: ChatRequest, model: str) -> None:
        self.body, self._chat, self._calls = body, chat, bool(chat.callable_tools())
        self.id, self._item, self._sequence = new_id("resp"), new_id("msg"), 0
        shown = body.model_dump(include={*_ECHOED}, by_alias=True)
        self._head = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            **shown,
            "conversation": {"id": body.conversation_id} if body.conversation_id else None,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "truncation": "disabled",
            "output": [],
            "usage": None,
        }

    def begun(self) -> dict[str, Any]:
        """The response before its answer."""
        return {**self._head, "status": "in_progress"}

    def failed(self, error: Exception) -> dict[str, Any]:
        """The response of an answer that failed in the middle."""
        message = body_of(error)[1]["error"]["message"]
        return {**self._head, "status": "failed", "error": {"code": "server_error", "message": message}}

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """The response; empty if the client has disconnected."""
        finished = events[-1] if events else None
        if not isinstance(finished, Finished):
            return {}
        cut, s = finished.reason in ("length", "context"), finished.statistics
        return {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._output(finished)],
            "usage": {
                "input_tokens": s.prompt_tokens,
                "input_tokens_details": {"cached_tokens": s.reused_tokens, "cache_write_tokens": 0},
                "output_tokens": s.generated_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": s.prompt_tokens + s.generated_tokens,
            },
            **whole_outcome(finished, events, texts=self.body.memory.texts),
        }

    async def events(
        self, events: AsyncGenerator[Event, None], finished: Callable[[dict[str, Any]], None]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a streamed response. finished: is called with the whole response before the last one."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self.begun())
        if not self._calls:
            for event in self._opening():
                yield event
        found = []
        async with aclosing(events):
            async for one in events:
                found.append(one)
                if isinstance(one, Token) and one.text and not self._calls:
                    yield self._of_part("response.output_text.delta", delta=one.text, logprobs=[])
        if not (answer := self.whole(found)):
            return
        (item,) = answer["output"]
        if self._calls and item["type"] == "message":  # a call that was cut off is shown as its text
            for event in self._opening():
                yield event
        for event in self._ending(item) if item["type"] == "message" else self._call(item):
            yield event
        yield self._event("response.output_item.done", output_index=0, item=item)
        finished(answer)
        yield self._event(f"response.{answer['status']}", response=answer)

    def failure(self, error: Exception) -> dict[str, Any]:
        """The last event of a stream that failed."""
        return self._event("response.failed", response=self.failed(error))

    def _output(self, finished: Finished) -> dict[str, Any]:
        """The item that the answer is: a message, or the call of a tool."""
        call = self._chat.called(finished.text) if finished.reason == "end" else None
        if call is not None:
            kind, prefix = ("custom_tool_call", "ctc") if isinstance(call, Custom) else ("function_call", "fc")
            own = {"id": f"{prefix}_{self._item[4:]}", "type": kind, "status": "completed"}
            return {**own, "call_id": f"call_{self.id[-24:]}", **call.model_dump(exclude_unset=True)}
        spans = finished.spans if self.body.memory.citations else ()
        annotations = [_annotation(finished.text, span, self.body.memory.texts) for span in spans]
        status = "incomplete" if finished.reason in ("length", "context") else "completed"
        return {**self._message(status), "content": [_part(finished.text, annotations)]}

    def _message(self, status: str) -> dict[str, Any]:
        return {"id": self._item, "type": "message", "role": "assistant", "status": status, "content": []}

    def _opening(self) -> Iterator[dict[str, Any]]:
        """Events before the text of a message."""
        yield self._event("response.output_item.added", output_index=0, item=self._message("in_progress"))
        yield self._of_part("response.content_part.added", part=_part("", []))

    def _ending(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Events behind the text of a message."""
        (part,) = item["content"]
        for number, annotation in enumerate(part["annotations"]):
            added = {"annotation_index": number, "annotation": annotation}
            yield self._of_part("response.output_text.annotation.added", **added)
        yield self._of_part("response.output_text.done", text=part["text"], logprobs=[])
        yield self._of_part("response.content_part.done", part=part)

    def _call(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Events of a call, which is shown when it is whole."""
        kind, name = _CALLS[item["type"]]
        yield self._event(
            "response.output_item.added", output_index=0, item={**item, "status": "in_progress", name: ""}
        )
        about = {"item_id": item["id"], "output_index": 0}
        yield self._event(f"response.{kind}.delta", **about, delta=item[name])
        yield self._event(f"response.{kind}.done", **about, **{name: item[name]})

    def _of_part(self, kind: str, **values: object) -> dict[str, Any]:
        return self._event(kind, item_id=self._item, output_index=0, content_index=0, **values)

    def _event(self, kind: str, **values: object) -> dict[str, Any]:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence - 1, **values}


def _typed_events(form: ResponseForm, values: AsyncGenerator[dict[str, Any], None]) -> EventSourceResponse:
    """Server-sent events that have their `type` as name; an error ends the stream. Closes `values`."""

    def sent(value: dict[str, Any]) -> dict[str, str]:
        return {"event": value["type"], "data": as_line(value)}

    async def stream() -> AsyncGenerator[dict[str, str], None]:
        async with aclosing(values):
            try:
                async for value in values:
                    yield sent(value)
            except Exception as error:  # the status was sent long ago
                yield sent(form.failure(error))

    return EventSourceResponse(stream(), ping=PING_S, sep="\n")


def _part(text: str, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def _annotation(text: str, span: Span, texts: bool) -> dict[str, Any]:
    """A span as an annotation; index: where it ends."""
    found = file_citation(text, span, texts)
    cited = found.pop("file_citation")
    return {**found, "index": found["end_index"], **cited}


def _listed(items: Sequence[Item], limit: int, after: str, order: str) -> dict[str, Any]:
    """A page of items, from behind the one with this id; raises ApiError where there is none."""
    ordered = [*items] if order == "asc" else [*items][::-1]
    begin = next((n for n, item in enumerate(ordered, 1) if item.id == after), 0)
    if after and not begin:
        raise ApiError(404, f"there is no item {after!r}", code="not_found")
    page = [item.as_json() for item in ordered[begin : begin + limit]]
    ids = [item["id"] for item in page] or [None]
    more = begin + limit < len(ordered)
    return {"object": "list", "data": page, "first_id": ids[0], "last_id": ids[-1], "has_more": more}
