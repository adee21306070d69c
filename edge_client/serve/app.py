"""The application: the routes that are not answers, the page, and the guard around them all."""

from __future__ import annotations

import base64
import dataclasses
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi import Path as PathParameter
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from edge_client.decoder.batch import Decoder
from edge_client.errors import RetrievalError
from edge_client.model import EdgeModel
from edge_client.recall.recaller import Recaller
from edge_client.serve import errors
from edge_client.serve.access import Access
from edge_client.serve.answering import Answering, Queue
from edge_client.serve.completions import completion_routes, event_stream
from edge_client.serve.errors import ApiError
from edge_client.serve.guard import Guard
from edge_client.serve.metrics import CONTENT_TYPE
from edge_client.serve.requests import BASE_NAME, EmbeddingRequest, NewKnowledgeBase
from edge_client.serve.settings import ServeSettings
from edge_client.settings import EdgeSettings
from edge_client.wire.admin import OwnDocument, ServiceLink, text_of
from edge_client.wire.bases import names_of
from memory_model.bundle import Bundle
from memory_model.embedder import Embedder
from memory_model.errors import InvalidInput

PAGE = Path(__file__).parent / "page"
BaseName = Annotated[str, PathParameter(pattern=BASE_NAME)]
ROOM_FOR_TITLE = 16
"""Tokens that a reference's title takes, roughly: only the progress bar depends on it."""


def make_app(model: EdgeModel, edge: EdgeSettings, settings: ServeSettings, access: Access) -> ASGIApp:
    """The server of an opened model, which it closes when it ends; raises InvalidInput for one without a service."""
    if not isinstance(model.recaller, Recaller):
        raise InvalidInput("the server needs a model made by EdgeModel.open")
    answering = Answering(model, edge.knowledge_base, Queue(edge.parallel, settings.waiting))
    reading, key = edge.channel, settings.upload_api_key
    link = ServiceLink(reading, dataclasses.replace(reading, api_key=key) if key else reading)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        yield
        await link.close()
        await anyio.to_thread.run_sync(answering.close)

    app = FastAPI(title="Memory³ Edge", docs_url=None, redoc_url=None, openapi_url=None, lifespan=running)
    errors.install(app)
    app.include_router(completion_routes(answering))
    app.include_router(model_routes(answering, model.decoder, model.recaller.embedder, int(time.time())))
    app.include_router(knowledge_routes(link, model.bundle, edge.knowledge_base, uploads=settings.uploads))
    app.mount("/", _Page(directory=PAGE, html=True))
    return Guard(app, settings, access, answering.metrics)


class _Page(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file; the browser keeps it and asks whether it is still the same."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def model_routes(answering: Answering, decoder: Decoder, embedder: Embedder, created: int) -> APIRouter:
    """/v1/models, /v1/embeddings, /health and /metrics. embedder: the one that recall uses."""
    router = APIRouter()
    bundle, queue = answering.bundle, answering.queue
    manifest, memory = bundle.manifest, bundle.config.memory

    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created, "owned_by": "local"}

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model, and the embedder."""
        return {"object": "list", "data": [described(manifest.name), described(embedder.name)]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The model, under whatever name a client knows it."""
        return described(name)

    @router.post("/v1/embeddings")
    async def embeddings(body: EmbeddingRequest) -> dict[str, Any]:
        """Vectors of texts, of unit length, as the service's index has them."""
        if body.dimensions not in (None, embedder.dim):
            raise ApiError(
                400, f"the vectors have {embedder.dim} numbers, not {body.dimensions}",
                code="invalid_value", param="dimensions",
            )  # fmt: skip
        vectors = (await anyio.to_thread.run_sync(embedder.embed, body.texts)).astype("<f4")
        packed = body.encoding_format == "base64"
        sent = [base64.b64encode(v.tobytes()).decode() if packed else v.tolist() for v in vectors]
        tokens = sum(bundle.tokenizer.count(text) for text in body.texts)
        return {
            "object": "list", "model": embedder.name,
            "data": [{"object": "embedding", "index": n, "embedding": v} for n, v in enumerate(sent)],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }  # fmt: skip

    @router.get("/health")
    async def health() -> dict[str, Any]:
        """Whether answers are given; does not call the service, without which they are given too."""
        return {
            "status": "ok",
            "model": {
                "name": manifest.name, "precision": manifest.precision, "context": decoder.context,
                "chunk_tokens": memory.chunk_tokens, "memories_per_chunk": memory.memories_per_chunk,
            },
            "answers": {"running": queue.running, "waiting": queue.waiting},
        }  # fmt: skip

    @router.get("/metrics")
    async def metrics() -> Response:
        """Counts for Prometheus."""
        return Response(answering.metrics.text(), media_type=CONTENT_TYPE)

    return router


def knowledge_routes(link: ServiceLink, bundle: Bundle, default_base: str, *, uploads: bool) -> APIRouter:
    """/v1/service and /v1/knowledge_bases. uploads: whether any of them may write."""
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
        found: dict[str, Any] = {"address": link.address, "uploads": uploads}
        try:
            return {**found, "reachable": True, **await link.describe()}
        except RetrievalError as error:
            return {**found, "reachable": False, "error": str(error)}

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
        """Write a document, the body as UTF-8 text or a PDF; the answer streams how far it is."""
        check_writing()
        try:
            text = await anyio.to_thread.run_sync(text_of, await request.body())
        except InvalidInput as error:
            raise ApiError(415, str(error), code="not_text") from error
        document = OwnDocument(key, title, text)
        tokens = await anyio.to_thread.run_sync(bundle.tokenizer.count, text)
        each = max(bundle.config.memory.reference_tokens - ROOM_FOR_TITLE, 1)

        async def steps() -> AsyncGenerator[dict[str, Any], None]:
            yield {"state": "sent", "references_expected": max(1, math.ceil(tokens / each))}
            async for step in link.ingest(name, document):
                yield step
                if step["state"] == "done":
                    return

        return event_stream(steps())

    @router.get("/v1/knowledge_bases/{name}/documents")
    async def documents(
        name: BaseName, page: str = "", count: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> dict[str, Any]:
        """A page of its documents, by key."""
        return await link.documents(name, page, count)

    @router.delete("/v1/knowledge_bases/{name}/documents")
    async def delete(name: BaseName, key: str) -> dict[str, Any]:
        """Remove a document."""
        check_writing()
        return {"deleted": await link.delete_document(name, key)}

    return router
