"""Errors in OpenAI's format, bodies as routes read them, and the guard that checks requests before every route.

The guard looks at host name, origin, key and the body's size. It is plain ASGI: a page of another site can reach
127.0.0.1 through its visitor's browser, by its own name (DNS rebinding) or by ours, so both names are looked at.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_client.errors import ContextFull, ModelClosed, RetrievalError, SessionBusy
from edge_client.serve.access import ServeSettings, is_own, own_names
from memory3.errors import InvalidInput, Memory3Error, MissingFile
from memory3.text.tokenizer import well_formed

log = logging.getLogger("edge_client.serve")

INVALID = "invalid_request_error"
_CLASSES: Sequence[tuple[type[Memory3Error], int, str]] = (
    (InvalidInput, 400, INVALID),
    (ContextFull, 400, INVALID),
    (MissingFile, 404, INVALID),
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
"""Status of a RetrievalError by its reason; else 503 if the service did not answer."""
_ROUTING = {
    400: "invalid_value",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "unsupported_encoding",
}

_TOO_LARGE = "the body is larger than {} bytes: send less"

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
LARGEST_BODY, LARGEST_DOCUMENT = 1 << 20, 16 << 20
DOCUMENTS, EMBEDDINGS = "/v1/local", "/v1/embeddings"
# Trusted Types: no string becomes HTML, and one policy names the service worker's file.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types worker"
)
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class ApiError(Exception):
    """An error response raised by this server."""

    def __init__(
        self, status: int, message: str, *, code: str, kind: str = INVALID, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.kind, self.retry_after_s = status, code, kind, retry_after_s


def body_of(error: Exception) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """Status, body and headers of an error; an unexpected one is logged and its message hidden."""
    retry_after_s = getattr(error, "retry_after_s", None)
    headers = {} if retry_after_s is None else {"Retry-After": f"{retry_after_s:.0f}"}
    message, param = str(error), None
    if isinstance(error, ApiError):
        status, kind, code = error.status, error.kind, error.code
    elif isinstance(error, Memory3Error):
        status, kind = next((s, k) for cls, s, k in _CLASSES if isinstance(error, cls))
        if isinstance(error, RetrievalError):
            status, kind = _REASONS.get(error.reason, (503 if error.unavailable else status, kind))
        # OpenAI's code where it has one.
        code = "context_length_exceeded" if error.reason == "CONTEXT_FULL" else error.reason.lower()
    elif isinstance(error, RequestValidationError):
        status, kind, code = 400, INVALID, "invalid_value"
        message, param = _first_problem(error.errors(), error.body)
    elif isinstance(error, HTTPException):
        status, kind, code = error.status_code, INVALID, _ROUTING.get(error.status_code, "http_error")
        message, headers = str(error.detail), dict(error.headers or {})
    else:
        log.error("a request failed", exc_info=error)
        status, kind, code = 500, "server_error", "internal_error"
        message = "the server failed on this request; its log has the cause"
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}, headers


def response_of(error: Exception) -> JSONResponse:
    """The response that reports an error."""
    status, body, headers = body_of(error)
    return JSONResponse(body, status, headers)


def install(app: FastAPI) -> None:
    """Install handlers that turn every error of a route into such a response."""

    async def handler(_: Request, error: Exception) -> JSONResponse:
        return response_of(error)

    for kind in (ApiError, Memory3Error, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handler)


def _first_problem(problems: Sequence[Any], body: Any) -> tuple[str, str | None]:
    """Message and field of a validation error, without the value, which may be large. A union lists all its forms."""
    problem: Mapping[str, Any] = problems[0]
    part, *names = problem["loc"]
    if part != "body":  # a parameter of the address
        where = ".".join(map(str, names))
        return f"{where}: {_message(problem)}", where
    field = _field(problem, body)
    where = ".".join(str(part) for part in field)
    if problem["type"] == "json_invalid":
        return f"the body is no JSON: {problem.get('ctx', {}).get('error', problem['msg'])}", None
    if problem["type"] == "unknown_field":
        where = ".".join(map(str, (*field, problem["ctx"]["field"])))
        return f"unknown field {where}; {_message(problem)}", where
    if not where and problem["type"] == "value_error":
        return _message(problem), None
    if not where:
        return "the body must be a JSON object, sent with Content-Type: application/json", None
    forms: dict[str, list[tuple[tuple[Any, ...], str]]] = {}  # by the union's member: its problems, with their places
    for other in problems:
        steps = _steps(other)
        if steps[: len(field)] == field and len(steps) > len(field):
            place = _place(other, body)[len(field) :]
            found = forms.setdefault(str(steps[len(field)]), [])
            if not found or place[: len(found[0][0])] == found[0][0]:  # the first says enough, with a union's forms
                found.append((place, _message(other)))
    said = list(dict.fromkeys(_joined(found) for found in forms.values())) or [_message(problem)]
    if len(said) == 1:
        return f"{where}: {said[0]}", where
    return f"{where} has none of its forms: {'; '.join(said)}", where


def _joined(problems: Sequence[tuple[tuple[Any, ...], str]]) -> str:
    """Problems with their places, those of one place together."""
    places: dict[str, list[str]] = {}
    for place, message in problems:
        places.setdefault(".".join(str(part) for part in place), []).append(message)
    each = {place: " or ".join(dict.fromkeys(messages)) for place, messages in places.items()}
    return ", ".join(f"{place}: {message}" if place else message for place, message in each.items())


def _place(problem: Mapping[str, Any], body: Any) -> tuple[Any, ...]:
    """The whole path of a validation error in the body, without the members of unions."""
    found, value, steps = list[Any](), body, _steps(problem)
    for number, part in enumerate(steps):
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int)):
            found.append(part)
            value = value[part] if isinstance(value, dict) or part < len(value) else None
        elif number == len(steps) - 1 and problem["type"] == "missing":
            found.append(part)
    return tuple(found)


def _steps(problem: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(part for part in problem["loc"] if part != "body")


def _field(problem: Mapping[str, Any], body: Any) -> tuple[Any, ...]:
    """The field's path in a validation error's location, without the union member and the path within it."""
    steps, value = _steps(problem), body
    for number, part in enumerate(steps):
        within = part in value if isinstance(value, dict) else isinstance(part, int) and isinstance(value, list)
        if within:
            value = value[part]
        elif number == len(steps) - 1 and problem["type"] == "missing":
            return steps
        else:
            return steps[:number]
    return steps


def _message(problem: Mapping[str, Any]) -> str:
    return str(problem["msg"]).removeprefix("Value error, ")


class _Body(Request):
    async def json(self) -> Any:
        """The body; "?" for half a surrogate pair, which a string has that JavaScript cut. Raises HTTPException."""
        if (encoding := self.headers.get("content-encoding", "identity")) != "identity":
            raise HTTPException(415, f"the body is encoded as {encoding}: send it as it is")
        try:
            return json.loads(well_formed(json.dumps(await super().json(), ensure_ascii=False)))
        except json.JSONDecodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"the body cannot be read: {error}") from error


class JsonRoute(APIRoute):
    """A route whose body can be answered and stored: all of its strings can be encoded."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See the base class."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_Body(request.scope, request.receive))

        return handler


class Guard:
    """Wraps the application; refuses requests before the body is read."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, key: str | None) -> None:
        self._app, self._origins = app, settings.allowed_origins
        self._key = None if key is None else key.encode()
        names = {*OWN_NAMES, *settings.allowed_hosts}
        if not is_own(settings.host):
            names |= {settings.host, *own_names()}
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        more = dict(SECURITY_HEADERS)
        if scope["scheme"] == "https" or is_own(_address(scope)):
            more["Cross-Origin-Opener-Policy"] = "same-origin"  # elsewhere browsers ignore it, and complain

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(more)
            await send(message)

        headers = Headers(scope=scope)
        try:
            self._check_names(headers, scope)
            self._check_key(headers, scope["path"])
            limit = LARGEST_DOCUMENT if scope["path"] in (DOCUMENTS, EMBEDDINGS) else LARGEST_BODY
            _check_length(headers, limit)
        except ApiError as error:
            await response_of(error)(scope, receive, sending)
            return
        if scope["method"] == "HEAD":  # the server drops the body
            scope = {**scope, "method": "GET"}
        await self._app(scope, _counted(receive, limit) if "transfer-encoding" in headers else receive, sending)

    def _check_names(self, headers: Headers, scope: Scope) -> None:
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        # The address at which the connection came in is no name that somebody else could have pointed here.
        address = _address(scope)
        if name.lower() not in self._names | {address, f"[{address}]"}:
            raise ApiError(
                403,
                "this server does not serve that host name: use its address, or permit the name with "
                "EDGE_CLIENT_SERVE_ALLOWED_HOSTS",
                code="host_not_allowed",
                kind="permission_error",
            )
        origin = headers.get("origin")
        if origin in self._origins:
            return
        same = origin is None or origin == f"{scope['scheme']}://{host}"
        # A browser that sends no Origin (a link, an image) still says where the request comes from.
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site") and (
            headers.get("sec-fetch-mode") != "navigate"
        )
        if not same or foreign:
            raise ApiError(
                403,
                "pages of other sites may not call this server; permit an origin with "
                "EDGE_CLIENT_SERVE_ALLOWED_ORIGINS",
                code="origin_not_allowed",
                kind="permission_error",
            )

    def _check_key(self, headers: Headers, path: str) -> None:
        if self._key is None or not path.startswith("/v1"):
            return
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), self._key):
            raise ApiError(
                401,
                "this server requires its API key: open the address that `edge-client serve` printed, or send the "
                "key as `Authorization: Bearer …`",
                code="invalid_api_key",
                kind="authentication_error",
            )


def _address(scope: Scope) -> str:
    """The local address of the connection."""
    return str((scope.get("server") or ("", 0))[0]).removeprefix("::ffff:")


def _check_length(headers: Headers, limit: int) -> None:
    if int(headers.get("content-length", "0")) > limit:
        raise ApiError(413, _TOO_LARGE.format(limit), code=_ROUTING[413])


def _counted(receive: Receive, limit: int) -> Receive:
    """Receive a body of unknown length, up to the limit; raises HTTPException beyond it."""
    taken = 0

    async def counting() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise HTTPException(413, _TOO_LARGE.format(limit))
        return message

    return counting
