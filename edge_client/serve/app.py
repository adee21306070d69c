"""The application: routes, errors, the page, and the guard around them all."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from edge_client.model import EdgeModel
from edge_client.recall.recaller import Recaller
from edge_client.serve import errors
from edge_client.serve.answering import Answering
from edge_client.serve.chat_api import chat_routes
from edge_client.serve.completion_api import completion_routes
from edge_client.serve.conversations import Conversations
from edge_client.serve.guard import Guard
from edge_client.serve.knowledge_api import knowledge_routes
from edge_client.serve.metrics import Counted
from edge_client.serve.model_api import model_routes
from edge_client.serve.settings import ServeSettings
from edge_client.settings import EdgeSettings
from edge_client.wire.admin import ServiceLink
from memory_model.errors import InvalidInput

PAGE = Path(__file__).parent / "page"


def make_app(model: EdgeModel, edge: EdgeSettings, settings: ServeSettings) -> ASGIApp:
    """The server of an opened model, which it closes when it ends. Raises InvalidInput for unsafe settings."""
    settings.check()
    if not isinstance(model.recaller, Recaller):
        raise InvalidInput("the server needs a model made by EdgeModel.open")
    embedder, bundle = model.recaller.embedder, model.bundle
    conversations = Conversations(model, edge.knowledge_base, settings.conversations)
    answering = Answering(bundle, conversations, settings)
    reading = edge.channel
    key = settings.upload_api_key
    link = ServiceLink(reading, dataclasses.replace(reading, api_key=key) if key else reading)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        yield
        await link.close()
        await anyio.to_thread.run_sync(conversations.close)

    app = FastAPI(title="Memory³ Edge", docs_url=None, redoc_url=None, openapi_url=None, lifespan=running)
    errors.install(app)
    app.include_router(chat_routes(answering))
    app.include_router(completion_routes(answering))
    app.include_router(model_routes(answering, embedder, int(time.time())))
    app.include_router(knowledge_routes(link, bundle, edge.knowledge_base, uploads=settings.uploads))
    app.mount("/", _Page(directory=PAGE, html=True))
    return Guard(Counted(app, answering.metrics), settings)


class _Page(StaticFiles):
    """The page's files, asked for anew after every update of the program."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file; the browser keeps it and asks whether it is still the same."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response
