"""What responses hold, for `GET /openapi.json`: nothing is validated by it, the tests compare."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

_JSON, _EVENTS, _BYTES = "application/json", "text/event-stream", "application/octet-stream"
EVENT_STREAM: dict[str, Any] = {"description": "Server-sent events, each a JSON value", "content": {_EVENTS: {}}}
FILE: dict[str, Any] = {
    "requestBody": {"required": True, "content": {_BYTES: {"schema": {"type": "string", "format": "binary"}}}}
}


class Problem(BaseModel):
    """What is wrong. code: a name for programs; param: the request's field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every response that is no success."""

    error: Problem


class Usage(BaseModel):
    """Token counts. prompt_tokens_details: `cached_tokens` kept their key-values from an earlier answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class MemoryUse(BaseModel):
    """chunks: per chunk of the text what was recalled. without_memory: memories could not be had."""

    without_memory: bool
    refused: bool
    chunks: list[dict[str, Any]]


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    usage: Usage
    memory: MemoryUse
    timings: dict[str, Any]


class ReplyMessage(BaseModel):
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[dict[str, Any]] = []


class ChatChoice(BaseModel):
    """The one answer."""

    index: Literal[0]
    message: ReplyMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: dict[str, Any] | None


class ChatCompletion(_Answer):
    """Of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextChoice(BaseModel):
    """The one continuation."""

    index: Literal[0]
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: None


class TextCompletion(_Answer):
    """Of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class Model(BaseModel):
    """A model that answers, or embeds."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """Of /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Embedding(BaseModel):
    """A vector of unit length, or its float32 bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """Of /v1/embeddings."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: dict[str, int]


class Health(BaseModel):
    """Of /health."""

    status: Literal["ok"]
    model: dict[str, Any]
    answers: dict[str, int]
    steps_by_batch_size: dict[str, int]


class KnowledgeBaseItem(BaseModel):
    """A knowledge base of the service."""

    name: str
    description: str
    state: str


class KnowledgeBaseList(BaseModel):
    """address: of the service, empty where none is called; error: why it does not answer."""

    default: str
    also: list[str]
    address: str
    error: str
    data: list[KnowledgeBaseItem]


class DocumentItem(BaseModel):
    """references: memories of the document."""

    key: str
    title: str
    references: int
    knowledge_base: str = ""


class DocumentPage(BaseModel):
    """next: of the following page, empty at the end."""

    data: list[DocumentItem]
    next: str


class DocumentList(BaseModel):
    """Documents of this device."""

    data: list[DocumentItem]


class Deleted(BaseModel):
    """Whether the document was there."""

    deleted: bool


def ok(model: type[BaseModel], *, streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route. streams: it may answer with events instead."""
    return {200: {"model": model, **({"content": {_EVENTS: {}}} if streams else {})}}


def describe(app: FastAPI) -> None:
    """Let the application describe itself: errors are ours, and 400 where FastAPI has 422."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            schemas = schema["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            problem = Problem.model_json_schema()
            schemas |= {
                "Problem": problem,
                "Error": ErrorBody.model_json_schema(ref_template="#/components/schemas/{model}"),
            }
            schemas["Error"].pop("$defs", None)
            refused = {"description": "Refused", "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}
            for operations in schema["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    operation["responses"]["default"] = refused
            schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{}, {"key": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
