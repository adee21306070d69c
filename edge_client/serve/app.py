"""The application: routes for models, knowledge bases and local documents, the page, and the guard around all."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncGenerator
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import anyio
import anyio.to_thread
import numpy as np
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi import Path as PathParameter
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from edge_client.errors import RetrievalError
from edge_client.local.folder import DEFAULT_NAME
from edge_client.local.records import LocalDocument
from edge_client.model import EdgeModel
from edge_client.retrieval import Hit, names_of
from edge_client.serve.access import ServeSettings
from edge_client.serve.completions import Answering, Queue, completion_routes, event_stream
from edge_client.serve.refusals import DOCUMENTS, EMBEDDINGS, Guard, JsonRoute, install
from edge_client.serve.requests import BASE_NAME, Correction, EmbeddingRequest
from edge_client.serve.responses import response_routes
from edge_client.serve.schema import (
    EVENT_STREAM,
    FILE,
    Corrected,
    Deleted,
    DocumentList,
    DocumentPage,
    EmbeddingList,
    Health,
    KnowledgeBaseList,
    MemoryList,
    Model,
    ModelList,
    describe,
    ok,
)
from edge_client.serve.suggestions import suggestion_routes
from edge_client.settings import EdgeSettings
from edge_client.wire.client import DocumentInfo, MemoryClient
from memory3 import __version__
from memory3.errors import InvalidInput, MissingFile
from memory3.formats import Report, read_documents
from memory3.text.references import title_line

PAGE = Path(__file__).parent / "page"
MEMORIES = f"{DOCUMENTS}/memories"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
STEP = ("outcome", "key", "done", "references", "message")
"""Attributes reported while a document is being remembered."""


def make_app(model: EdgeModel, edge: EdgeSettings, settings: ServeSettings, key: str | None) -> ASGIApp:
    """The server application of a model, which the caller closes. key: see `access_key`."""
    answering = Answering(model, edge, Queue(edge.parallel, settings.waiting))
    app = FastAPI(title="Memory³ Edge", version=__version__, docs_url=None, redoc_url=None)
    install(app)
    describe(app)
    app.include_router(completion_routes(answering))
    app.include_router(response_routes(answering))
    app.include_router(model_routes(answering))
    app.include_router(knowledge_routes(model.engine.recaller.client, edge))
    app.include_router(local_routes(model))
    app.include_router(suggestion_routes(answering))
    app.mount("/", _Page(directory=PAGE, html=True))
    guarded = Guard(app, settings, key)
    if not settings.allowed_origins:
        return guarded
    any_: Any = {"allow_methods": ["*"], "allow_headers": ["*"], "expose_headers": ["*"]}
    # A browser asks before a site of the Internet reaches this machine or its network.
    return CORSMiddleware(guarded, allow_origins=settings.allowed_origins, allow_private_network=True, **any_)


class _Page(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, which browsers cache and revalidate. Matched after all routes.

        Raises HTTPException: 405 with the methods that a route, or a file, has; 404.
        """
        routes = [route for route in scope["app"].routes if not isinstance(route, Mount)]
        whole = {**scope, "root_path": scope.get("app_root_path", "")}
        allowed = {m for m in METHODS if any(r.matches({**whole, "method": m})[0] is Match.FULL for r in routes)}
        if not allowed and self.lookup_path(path)[1] is None:
            raise HTTPException(404, f"there is no {scope['path']}: OpenAI's API is under /v1, /openapi.json lists all")
        if not allowed and scope["method"] not in ("GET", "HEAD"):
            allowed = {"GET"}
        if allowed:
            methods = ", ".join(sorted({*allowed, "HEAD"} if "GET" in allowed else allowed))
            raise HTTPException(405, f"{scope['path']} takes {methods}, not {scope['method']}", {"Allow": methods})
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def model_routes(answering: Answering) -> APIRouter:
    """/v1/models, /v1/embeddings and /health."""
    router = APIRouter(route_class=JsonRoute)
    model, embedder, queue = answering.model, answering.model.engine.recaller.embedder, answering.queue
    manifest, memory, created = model.bundle.manifest, model.bundle.config.memory, int(time.time())

    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created, "owned_by": "local"}

    @router.get("/v1/models", responses=ok(ModelList))
    async def models() -> dict[str, Any]:
        """The model and the embedder."""
        return {"object": "list", "data": [described(manifest.name), described(embedder.name)]}

    @router.get("/v1/models/{name:path}", responses=ok(Model))
    async def one_model(name: str) -> dict[str, Any]:
        """The model; any name is accepted."""
        return described(name)

    @router.post(EMBEDDINGS, responses=ok(EmbeddingList))
    async def embeddings(body: EmbeddingRequest) -> dict[str, Any]:
        """Unit vectors of texts, of the same embedder as the service's index."""
        if body.dimensions not in (None, embedder.dim):
            raise InvalidInput(
                f"dimensions: vectors of {embedder.name} have {embedder.dim} numbers and cannot be shortened: "
                "omit the field"
            )

        def computed() -> tuple[np.ndarray, int]:
            count = model.bundle.tokenizer.count
            return embedder.embed(body.texts).astype("<f4"), sum(count(text) for text in body.texts)

        vectors, tokens = await anyio.to_thread.run_sync(computed)
        packed = body.encoding_format == "base64"
        sent = [base64.b64encode(v.tobytes()).decode() if packed else v.tolist() for v in vectors]
        return {
            "object": "list",
            "model": embedder.name,
            "data": [{"object": "embedding", "index": n, "embedding": v} for n, v in enumerate(sent)],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    @router.get("/health", responses=ok(Health))
    async def health() -> dict[str, Any]:
        """Model and load of this server; does not depend on the service."""
        return {
            "status": "ok",
            "model": {
                "name": manifest.name,
                "precision": manifest.precision,
                "context": model.engine.decoder.context,
                "chunk_tokens": memory.chunk_tokens,
                "memories_per_chunk": memory.memories_per_chunk,
                "citations": model.engine.decoder.backend.records_queries,
            },
            "answers": {"running": queue.running, "waiting": queue.waiting},
            "steps_by_batch_size": dict(model.engine.decoder.batch_sizes),
        }

    return router


def knowledge_routes(client: MemoryClient | None, edge: EdgeSettings) -> APIRouter:
    """/v1/knowledge_bases: the service's knowledge bases, read-only. client: None without a service."""
    router = APIRouter()

    @router.get("/v1/knowledge_bases", responses=ok(KnowledgeBaseList))
    async def listed() -> dict[str, Any]:
        """The service's knowledge bases, or the error if the service does not answer."""
        first, *also = names_of(edge.knowledge_base)
        found: dict[str, Any] = {"default": first, "also": also, "address": "", "error": "", "data": []}
        if client is not None:
            found["address"] = edge.service
            try:
                found["data"] = [
                    {"name": base.name, "description": base.description, "state": base.state}
                    for base in await anyio.to_thread.run_sync(client.knowledge_bases)
                ]
            except RetrievalError as error:
                found["error"] = str(error)
        return found

    @router.get("/v1/knowledge_bases/{name}/documents", responses=ok(DocumentPage))
    async def documents(
        name: Annotated[str, PathParameter(pattern=rf"^{BASE_NAME}$")],
        page: str = "",
        count: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> dict[str, Any]:
        """A page of a knowledge base's documents, by key."""
        if client is None:
            raise MissingFile(f"there is no knowledge base {name!r}: the service is not called (--offline)")
        found, following = await anyio.to_thread.run_sync(client.documents, name, page, count)
        return {"data": [_listed(one) for one in found], "next": following}

    return router


def local_routes(model: EdgeModel) -> APIRouter:
    """/v1/local: the documents that this device remembers. They are not sent to the service."""
    router, one_at_a_time = APIRouter(route_class=JsonRoute), anyio.Lock()

    @router.get(DOCUMENTS, responses=ok(DocumentList))
    async def listed() -> dict[str, Any]:
        """All documents of all knowledge bases of this device."""
        found = await anyio.to_thread.run_sync(model.local.documents)
        each = ((name, one) for name, documents in found.items() for one in documents)
        return {
            "data": [
                {
                    "knowledge_base": name,
                    **_listed(one),
                    "whole": one.whole,
                    "file": one.file,
                    "written_at": int(one.written_at),
                }
                for name, one in each
            ]
        }

    @router.get(MEMORIES, responses=ok(MemoryList))
    async def memories(key: str, knowledge_base: str = DEFAULT_NAME) -> dict[str, Any]:
        """The memories of a document, or of all pages and rows of a file, in order; the texts without its title."""

        def found() -> list[Hit]:
            base = model.local.base(knowledge_base)
            if not (keys := base.keys_of(key)):
                raise MissingFile(f"{knowledge_base} has no document {key!r}")
            return base.memories_of(keys)

        hits = await anyio.to_thread.run_sync(found)
        return {
            "data": [
                {
                    "key": hit.document_key,
                    "chunk_number": hit.chunk_number,
                    "text": (hit.text or "").removeprefix(title_line(hit.title)),
                }
                for hit in hits
            ]
        }

    @router.put(MEMORIES, responses=ok(Corrected))
    async def correct(
        body: Correction, key: str, chunk_number: Annotated[int, Query(ge=0)], knowledge_base: str = DEFAULT_NAME
    ) -> dict[str, Any]:
        """Replace the text of a memory of one document, or of one page or row of a file; an empty one removes it."""
        async with one_at_a_time:
            corrected = await anyio.to_thread.run_sync(
                lambda: model.correct(key, chunk_number, body.text, knowledge_base=knowledge_base)
            )
        if not corrected:
            raise MissingFile(f"{knowledge_base} has no memory {chunk_number} of a document {key!r}")
        return {"corrected": True}

    @router.post(DOCUMENTS, response_model=None, responses={200: EVENT_STREAM}, openapi_extra=FILE)
    async def remember(request: Request, key: Annotated[str, Query(pattern=r"^[^/\x00]{1,200}$")]) -> Response:
        """Remember the file in the body under `key`; streams the progress, then a report of what was read."""
        body = await request.body()

        async def steps() -> AsyncGenerator[dict[str, Any], None]:
            with TemporaryDirectory() as folder:
                stem = PurePath(key).stem.encode()[:150].decode(errors="ignore").strip(".")  # names have 255 bytes
                file = Path(folder) / f"{stem or 'file'}{PurePath(key).suffix[:20]}"
                file.write_bytes(body)
                report = Report()
                async with one_at_a_time:
                    remembered = model.remember_documents(read_documents(file, Path(key), report))
                    async for one in iterate_in_threadpool(remembered):
                        yield {name: getattr(one, name) for name in STEP}
                yield {"outcome": "read", "key": key, "message": "; ".join(report.notes), "report": report.as_json()}

        return event_stream(steps())

    @router.delete(DOCUMENTS, responses=ok(Deleted))
    async def forget(key: str, knowledge_base: str = DEFAULT_NAME) -> dict[str, Any]:
        """Forget a document, or with the key or name of a file all of its pages and rows."""
        if not await anyio.to_thread.run_sync(lambda: model.forget(key, knowledge_base=knowledge_base)):
            raise MissingFile(f"{knowledge_base} has no document {key!r}")
        return {"deleted": True}

    return router


def _listed(one: DocumentInfo | LocalDocument) -> dict[str, Any]:
    return {"key": one.key, "title": one.title, "source": one.source, "references": one.references}
