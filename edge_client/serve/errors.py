"""Errors as OpenAI's clients expect them: a status, and a body with message, type, param and code."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from edge_client.errors import (
    AccessRefused,
    ContextFull,
    DeadlineExceeded,
    IncompatibleService,
    ModelClosed,
    RequestRefused,
    RetrievalError,
    ServiceOverloaded,
    ServiceUnavailable,
    SessionBusy,
)
from memory_model.errors import InvalidInput, Memory3Error

log = logging.getLogger("edge_client.serve")

INVALID = "invalid_request_error"
_BY_REASON = {"KNOWLEDGE_BASE_NOT_FOUND": 404, "DOCUMENT_NOT_FOUND": 404, "KNOWLEDGE_BASE_EXISTS": 409}
# The first that fits counts: a leaf stands before what it derives from.
_STATUS: Sequence[tuple[type[Memory3Error], int, str]] = (
    (ContextFull, 400, INVALID),
    (InvalidInput, 400, INVALID),
    (SessionBusy, 409, INVALID),
    (ModelClosed, 503, "server_error"),
    (AccessRefused, 403, "permission_error"),
    (RequestRefused, 400, INVALID),
    (ServiceOverloaded, 503, "service_error"),
    (ServiceUnavailable, 503, "service_error"),
    (DeadlineExceeded, 504, "service_error"),
    (IncompatibleService, 409, "service_error"),
    (RetrievalError, 502, "service_error"),
    (Memory3Error, 500, "server_error"),
)
_CODES = {ContextFull: "context_length_exceeded", InvalidInput: "invalid_value"}


class ApiError(Exception):
    """A refusal of the server's own."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, kind: str = INVALID,
        retry_after_s: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.code, self.param, self.kind, self.retry_after_s = (
            status, code, param, kind, retry_after_s,
        )  # fmt: skip


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> dict[str, Any]:
    """The body that every error has."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of an error; what is no error of ours tells nothing of its inside."""
    if isinstance(error, ApiError):
        headers = {} if error.retry_after_s is None else {"Retry-After": f"{error.retry_after_s:.0f}"}
        return (
            error.status,
            error_body(str(error), kind=error.kind, code=error.code, param=error.param),
            headers,
        )
    if isinstance(error, Memory3Error):
        status, kind = next((s, k) for cls, s, k in _STATUS if isinstance(error, cls))
        code = next((c for cls, c in _CODES.items() if isinstance(error, cls)), "")
        headers = {}
        if isinstance(error, RetrievalError):
            code = error.reason.lower()
            status = _BY_REASON.get(error.reason, status)
            if error.retry_after_s is not None:
                headers["Retry-After"] = f"{error.retry_after_s:.0f}"
        return status, error_body(str(error), kind=kind, code=code or type(error).__name__), headers
    log.error("a request failed", exc_info=error)
    message = "the server failed on this request; its log has the cause"
    return 500, error_body(message, kind="server_error", code="internal_error"), {}


def install(app: FastAPI) -> None:
    """Let every error of a route leave as such a body."""

    async def ours(_: Request, error: Exception) -> JSONResponse:
        status, body, headers = body_of(error)
        return JSONResponse(body, status, headers)

    async def not_valid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        message, param = _first_problem(error.errors())
        return JSONResponse(error_body(message, kind=INVALID, code="invalid_value", param=param), 400)

    async def routing(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        codes = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
        body = error_body(str(error.detail), kind=INVALID, code=codes.get(error.status_code, "http_error"))
        return JSONResponse(body, error.status_code, error.headers)

    app.add_exception_handler(ApiError, ours)
    app.add_exception_handler(Memory3Error, ours)
    app.add_exception_handler(Exception, ours)
    app.add_exception_handler(RequestValidationError, not_valid)
    app.add_exception_handler(HTTPException, routing)


def _first_problem(problems: Sequence[Any]) -> tuple[str, str | None]:
    """What is wrong, without repeating the value, which may be huge; and where."""
    problem: Mapping[str, Any] = problems[0]
    place = [str(p) for p in problem["loc"] if p != "body"]
    if problem["type"] == "json_invalid":
        return f"the body is no JSON: {problem.get('ctx', {}).get('error', problem['msg'])}", None
    if not place:
        return "the body must be a JSON object, sent with Content-Type: application/json", None
    if problem["type"] == "extra_forbidden":
        return f"there is no field {'.'.join(place)} here: leave it out", ".".join(place)
    where = ".".join(place)
    return f"{where}: {problem['msg'].removeprefix('Value error, ')}", where
