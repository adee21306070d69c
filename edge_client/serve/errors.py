"""Errors as OpenAI's clients expect them: a status, and a body with message, type, param and code."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from edge_client.errors import ContextFull, ModelClosed, RetrievalError, SessionBusy
from memory_model.errors import InvalidInput, Memory3Error

log = logging.getLogger("edge_client.serve")

INVALID = "invalid_request_error"
_CLASSES: Sequence[tuple[type[Memory3Error], int, str]] = (
    (InvalidInput, 400, INVALID),
    (ContextFull, 400, INVALID),
    (SessionBusy, 409, INVALID),
    (ModelClosed, 503, "server_error"),
    (RetrievalError, 502, "service_error"),
    (Memory3Error, 500, "server_error"),
)
_REASONS: Mapping[str, tuple[int, str]] = {
    "ACCESS_REFUSED": (403, "permission_error"),
    "UNAUTHENTICATED": (403, "permission_error"),
    "SCOPE_TOO_SMALL": (403, "permission_error"),
    "INVALID_REQUEST": (400, INVALID),
    "KNOWLEDGE_BASE_NOT_FOUND": (404, INVALID),
    "INCOMPATIBLE": (409, "service_error"),
    "DEADLINE_EXCEEDED": (504, "service_error"),
}
"""RetrievalError by its reason; of the others 503 where the service gave no answer."""
_ROUTING = {404: "not_found", 405: "method_not_allowed"}


class ApiError(Exception):
    """A refusal of the server's own."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, kind: str = INVALID,
        retry_after_s: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s
        self.code, self.param, self.kind = code, param, kind


def _body(message: str, *, kind: str, code: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: Exception) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """Status, body and headers of an error; one that is not ours is logged and shown without its message."""
    retry_after_s = getattr(error, "retry_after_s", None)
    headers = {} if retry_after_s is None else {"Retry-After": f"{retry_after_s:.0f}"}
    if isinstance(error, ApiError):
        body = _body(str(error), kind=error.kind, code=error.code, param=error.param)
        return error.status, body, headers
    if isinstance(error, Memory3Error):
        status, kind = next((s, k) for cls, s, k in _CLASSES if isinstance(error, cls))
        if isinstance(error, RetrievalError):
            status, kind = _REASONS.get(error.reason, (503 if error.unavailable else status, kind))
        # OpenAI's code where it has one.
        code = "context_length_exceeded" if error.reason == "CONTEXT_FULL" else error.reason.lower()
        return status, _body(str(error), kind=kind, code=code), headers
    if isinstance(error, RequestValidationError):
        message, param = _first_problem(error.errors())
        return 400, _body(message, kind=INVALID, code="invalid_value", param=param), {}
    if isinstance(error, HTTPException):
        code = _ROUTING.get(error.status_code, "http_error")
        return error.status_code, _body(str(error.detail), kind=INVALID, code=code), error.headers or {}
    log.error("a request failed", exc_info=error)
    message = "the server failed on this request; its log has the cause"
    return 500, _body(message, kind="server_error", code="internal_error"), {}


def response_of(error: Exception) -> JSONResponse:
    """The response that reports an error."""
    status, body, headers = body_of(error)
    return JSONResponse(body, status, headers)


def install(app: FastAPI) -> None:
    """Let every error of a route leave as such a response."""

    async def handler(_: Request, error: Exception) -> JSONResponse:
        return response_of(error)

    for kind in (ApiError, Memory3Error, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handler)


def _first_problem(problems: Sequence[Any]) -> tuple[str, str | None]:
    """What is wrong, without repeating the value, which may be huge; and where."""
    problem: Mapping[str, Any] = problems[0]
    where = ".".join(str(part) for part in problem["loc"] if part != "body")
    if problem["type"] == "json_invalid":
        return f"the body is no JSON: {problem.get('ctx', {}).get('error', problem['msg'])}", None
    if not where:
        return "the body must be a JSON object, sent with Content-Type: application/json", None
    if problem["type"] == "extra_forbidden":
        return f"there is no field {where} here: leave it out", where
    return f"{where}: {problem['msg'].removeprefix('Value error, ')}", where
