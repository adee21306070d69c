"""Response schemas for `GET /openapi.json`; not used for validation, tests compare them with responses."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from memory3.text.verdict import Verdict

_JSON, _EVENTS, _BYTES = "application/json", "text/event-stream", "application/octet-stream"
EVENT_STREAM: dict[str, Any] = {"description": "Server-sent events, each a JSON value", "content": {_EVENTS: {}}}
FILE: dict[str, Any] = {
    "requestBody": {"required": True, "content": {_BYTES: {"schema": {"type": "string", "format": "binary"}}}}
}


class Problem(BaseModel):
    """An error. code: a stable name; param: the request's field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: Problem


class Usage(BaseModel):
    """Token counts. prompt_tokens_details: `cached_tokens` reused key-values of an earlier answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class MemoryUse(BaseModel):
    """Memories of an answer. chunks: recalls per chunk; without_memory: memories were unavailable.

    error: why they were, or those of the service; empty where nothing failed. verdict: what the answer rests on, see
    `Verdict`; null where that is not known.
    """

    without_memory: bool
    error: str
    refused: bool
    verdict: Verdict | None
    chunks: list[dict[str, Any]]


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    usage: Usage
    memory: MemoryUse
    timings: dict[str, Any]


class FileCitation(BaseModel):
    """A memory. file_id: its id; passage: characters of its text, and quote: these, with `memory.texts`."""

    file_id: str
    filename: str
    quote: str | None
    passage: list[int] | None
    score: float


class Annotation(BaseModel):
    """Characters of the answer that were read from a memory."""

    type: Literal["file_citation"]
    text: str
    start_index: int
    end_index: int
    file_citation: FileCitation


class ReplyMessage(BaseModel):
    """The assistant's turn. annotations: with `memory.citations`."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[dict[str, Any]] = []
    annotations: list[Annotation] = []


class ChatChoice(BaseModel):
    """The answer; there is always one."""

    index: Literal[0]
    message: ReplyMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: dict[str, Any] | None


class ChatCompletion(_Answer):
    """Response of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextChoice(BaseModel):
    """The continuation; there is always one. annotations: with `memory.citations`."""

    index: Literal[0]
    text: str
    annotations: list[Annotation] = []
    finish_reason: Literal["stop", "length"]
    logprobs: None


class TextCompletion(_Answer):
    """Response of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class ResponseObject(BaseModel):
    """Response of /v1/responses, which repeats the request's options. output: the answer, a message or a call."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["completed", "incomplete"]
    output: list[dict[str, Any]]
    usage: dict[str, Any]
    memory: MemoryUse
    timings: dict[str, Any]
    previous_response_id: str | None
    conversation: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    error: None


class DeletedResponse(BaseModel):
    """A response was forgotten."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ConversationObject(BaseModel):
    """A conversation that this process keeps."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(BaseModel):
    """A conversation was forgotten."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class ItemList(BaseModel):
    """A page of items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Model(BaseModel):
    """A language model or an embedder."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """Response of /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Embedding(BaseModel):
    """A vector of unit length, or its float32 bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """Response of /v1/embeddings."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: dict[str, int]


class Health(BaseModel):
    """Response of /health."""

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
    """Knowledge bases. address: of the service, empty without one; error: why it does not answer."""

    default: str
    also: list[str]
    address: str
    error: str
    data: list[KnowledgeBaseItem]


class DocumentItem(BaseModel):
    """A document. references: its number of memories; source: what to call it, such as "manual.pdf, page 12"."""

    key: str
    title: str
    source: str
    references: int
    knowledge_base: str = ""


class DocumentPage(BaseModel):
    """A page of documents. next: token of the next page, empty on the last."""

    data: list[DocumentItem]
    next: str


class LocalDocumentItem(DocumentItem):
    """A document of this device.

    whole: the number of its memories when all are written. file: the key of the file that it is a page or row of,
    otherwise its own. written_at: when its memories were written, in seconds since 1970.
    """

    whole: int
    file: str
    written_at: int


class DocumentList(BaseModel):
    """Documents of this device."""

    data: list[LocalDocumentItem]


class MemoryItem(BaseModel):
    """A memory. key: of its document, or of the page or row of a file."""

    key: str
    chunk_number: int
    text: str


class MemoryList(BaseModel):
    """Memories of a document of this device."""

    data: list[MemoryItem]


class Corrected(BaseModel):
    """The memory was there, and is replaced or removed."""

    corrected: bool


class SuggestionList(BaseModel):
    """Questions that the model answers; none where it answers none."""

    data: list[str]


class Deleted(BaseModel):
    """Whether the document was there."""

    deleted: bool


def ok(model: type[BaseModel], *, streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route. streams: whether it may answer with events."""
    return {200: {"model": model, **({"content": {_EVENTS: {}}} if streams else {})}}


def describe(app: FastAPI) -> None:
    """Install the OpenAPI schema: errors have the format of `ErrorBody`, with 400 instead of FastAPI's 422."""

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
