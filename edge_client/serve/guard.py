"""Who may call: the right host name, the right origin, the right key, and a body of bounded size and time.

Plain ASGI, before any route: a page of another site can reach 127.0.0.1 through its visitor's browser, by its own
name (DNS rebinding) or by ours, so both names are looked at.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_client.serve.access import Access, is_own, own_names
from edge_client.serve.errors import ApiError, response_of
from edge_client.serve.metrics import Metrics
from edge_client.serve.settings import ServeSettings

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
WRITING = "/v1/knowledge_bases"
# Trusted Types: no string becomes HTML.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


PREFLIGHT = {"Access-Control-Allow-Methods": "GET, POST, DELETE", "Access-Control-Max-Age": "600"}


class Guard:
    """Wraps the application; refuses before a byte of the body is read, and counts the responses."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, access: Access, metrics: Metrics) -> None:
        self._app, self._settings, self._access, self._metrics = app, settings, access, metrics
        self._names = {*OWN_NAMES, *settings.allowed_hosts}
        if not is_own(settings.host):
            self._names |= {settings.host, *own_names()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path, settings = Headers(scope=scope), scope["path"], self._settings
        origin = headers.get("origin")
        allowed = origin if origin in settings.allowed_origins else None
        send = self._sending(scope, send, allowed)
        limit = settings.upload_limit_bytes if path.startswith(f"{WRITING}/") else settings.body_limit_bytes
        try:
            self._check_names(headers, scope, allowed)
            if scope["method"] == "OPTIONS" and allowed:
                wanted = headers.get("access-control-request-headers", "authorization, content-type")
                permitted = {**PREFLIGHT, "Access-Control-Allow-Headers": wanted}
                await Response(status_code=204, headers=permitted)(scope, receive, send)
                return
            self._check_key(headers, scope["method"], path)
            declared = headers.get("content-length", "0")
            if not declared.isdigit() or int(declared) > limit:
                raise _too_large(limit)
        except (ApiError, HTTPException) as error:
            await response_of(error)(scope, receive, send)
            return
        await self._app(scope, _bounded(receive, limit, settings.body_timeout_s), send)

    def _sending(self, scope: Scope, send: Send, allowed_origin: str | None) -> Send:
        """Adds the headers to the response, and counts it."""
        more = dict(SECURITY_HEADERS)
        if scope["scheme"] == "https" or is_own((scope.get("server") or ("", 0))[0]):
            more["Cross-Origin-Opener-Policy"] = "same-origin"  # elsewhere browsers ignore it, and complain
        if allowed_origin:
            more |= {
                "Access-Control-Allow-Origin": allowed_origin,
                "Access-Control-Expose-Headers": "*",
                "Cross-Origin-Resource-Policy": "cross-origin",
                "Vary": "Origin",
            }

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(more)
                self._metrics.request(scope.get("route"), message["status"])
            await send(message)

        return sending

    def _check_names(self, headers: Headers, scope: Scope, allowed: str | None) -> None:
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        # The address at which the connection came in is no name that somebody else could have pointed here.
        address = (scope.get("server") or ("", 0))[0].removeprefix("::ffff:")
        if name.lower() not in self._names | {address, f"[{address}]"}:
            raise ApiError(
                403, "this server does not serve that host name: use its address, or permit the name with "
                "EDGE_CLIENT_SERVE_ALLOWED_HOSTS", code="host_not_allowed", kind="permission_error",
            )  # fmt: skip
        origin = headers.get("origin")
        same = origin is None or origin == f"{scope['scheme']}://{host}"
        # A browser that sends no Origin (a link, an image) still says where the request comes from.
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site") and (
            headers.get("sec-fetch-mode") != "navigate"
        )
        if allowed is None and (not same or foreign):
            raise ApiError(
                403, "pages of other sites may not call this server; permit an origin with "
                "EDGE_CLIENT_SERVE_ALLOWED_ORIGINS", code="origin_not_allowed", kind="permission_error",
            )  # fmt: skip

    def _check_key(self, headers: Headers, method: str, path: str) -> None:
        writes = method not in ("GET", "HEAD") and path.startswith(WRITING)
        reads = path.startswith("/v1") or path == "/metrics"
        if not (writes or (reads and self._access.to_read)):
            return
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            shown.strip().encode(), self._access.key.encode()
        ):
            raise ApiError(
                401, "this server requires its API key: open the address that `edge-client serve` printed, or send the "
                "key as `Authorization: Bearer …`",
                code="invalid_api_key", kind="authentication_error",
            )  # fmt: skip


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {limit} bytes: send less")


def _bounded(receive: Receive, limit: int, timeout_s: float) -> Receive:
    """Refuse a body that is larger than permitted, also in pieces without a length, or not there in time.

    Raises HTTPException, the one error that a route's reading of the body lets through.
    """
    seen, complete = 0, False
    deadline = time.monotonic() + timeout_s

    async def bounded() -> Message:
        nonlocal seen, complete
        if complete:  # what comes now is that the client hangs up, however late
            return await receive()
        try:
            with anyio.fail_after(max(deadline - time.monotonic(), 0.0)):
                message = await receive()
        except TimeoutError:
            why = f"the body was not complete after {timeout_s:g} s: send it faster, or less"
            raise HTTPException(408, why, {"Connection": "close"}) from None
        seen += len(message.get("body", b""))
        if seen > limit:
            raise _too_large(limit)
        complete = not message.get("more_body", False)
        return message

    return bounded
