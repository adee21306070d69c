"""/v1/knowledge_bases and /v1/service: what there is to read from, and documents written into it from the page."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse

from edge_client.errors import RetrievalError
from edge_client.serve.errors import ApiError
from edge_client.serve.requests import BASE_NAME, NewKnowledgeBase
from edge_client.serve.sse import event_stream
from edge_client.wire.admin import OwnDocument, ServiceLink, text_of
from edge_client.wire.bases import names_of
from memory_model.bundle import Bundle
from memory_model.errors import InvalidInput

BaseName = Annotated[str, Path(pattern=BASE_NAME)]
ROOM_FOR_TITLE = 16
"""Tokens that a reference's title takes, roughly: only the progress bar depends on it."""


def knowledge_routes(link: ServiceLink, bundle: Bundle, default_base: str, *, uploads: bool) -> APIRouter:
    """Routes over the service. uploads: whether any of them may write."""
    router = APIRouter()

    def check_writing() -> None:
        if not uploads:
            raise ApiError(
                403, "this server does not write into the service: start it without EDGE_CLIENT_SERVE_UPLOADS=0",
                code="uploads_off", kind="permission_error",
            )  # fmt: skip

    @router.get("/v1/service")
    async def service() -> dict[str, Any]:
        """Whether the service answers now; itself always answers."""
        told: dict[str, Any] = {"address": link.address, "uploads": uploads}
        try:
            return {**told, "reachable": True, **await link.describe()}
        except RetrievalError as error:
            return {**told, "reachable": False, "error": str(error)}

    @router.get("/v1/knowledge_bases")
    async def listed() -> dict[str, Any]:
        """All knowledge bases of the service."""
        first, *also = names_of(default_base)
        return {"default": first, "also": also, "data": await link.knowledge_bases()}

    @router.post("/v1/knowledge_bases", status_code=201)
    async def create(body: NewKnowledgeBase) -> dict[str, Any]:
        """Make an empty one."""
        check_writing()
        await link.create(body.name, body.description)
        return {"name": body.name}

    @router.post("/v1/knowledge_bases/{name}/documents", response_model=None)
    async def upload(name: BaseName, request: Request, key: str, title: str = "") -> Response:
        """Write a document, the body as UTF-8 text; the answer streams how far it is."""
        check_writing()
        document = _document(key, title, await request.body())
        expected = await anyio.to_thread.run_sync(_expected_references, bundle, document.text)

        async def told() -> AsyncGenerator[dict[str, Any], None]:
            yield {"state": "sent", "references_expected": expected}
            async for step in link.ingest(name, document):
                yield step
                if step["state"] in ("done", "failed"):
                    return

        return event_stream(told())

    @router.delete("/v1/knowledge_bases/{name}/documents")
    async def delete(name: BaseName, key: str) -> JSONResponse:
        """Remove a document."""
        check_writing()
        return JSONResponse({"deleted": await link.delete_document(name, key)})

    return router


def _document(key: str, title: str, body: bytes) -> OwnDocument:
    try:
        text = text_of(body)
    except InvalidInput as error:
        raise ApiError(415, str(error), code="not_text") from error
    return OwnDocument(key, title, text)


def _expected_references(bundle: Bundle, text: str) -> int:
    each = bundle.config.memory.reference_tokens - ROOM_FOR_TITLE
    return max(1, math.ceil(bundle.tokenizer.count(text) / max(each, 1)))
