"""Who may call: the right host name, the right origin, the right key, and a body of bounded size.

Plain ASGI, before any route: a page of another site can reach 127.0.0.1 through its visitor's browser, by its own
name (DNS rebinding) or by ours, so both names are looked at.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_client.serve.access import Access, ServeSettings, is_own, own_names
from edge_client.serve.errors import ApiError, response_of

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
LARGEST_BODY, LARGEST_DOCUMENT = 1 << 20, 16 << 20
DOCUMENTS = "/v1/local"
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


class Guard:
    """Wraps the application; refuses before a byte of the body is read."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, access: Access) -> None:
        self._app, self._origins = app, settings.allowed_origins
        self._key = None if access.key is None else access.key.encode()
        self._names = {*OWN_NAMES, *settings.allowed_hosts}
        if not is_own(settings.host):
            self._names |= {settings.host, *own_names()}

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
            _check_length(headers, LARGEST_DOCUMENT if scope["path"] == DOCUMENTS else LARGEST_BODY)
        except ApiError as error:
            await response_of(error)(scope, receive, sending)
            return
        await self._app(scope, receive, sending)

    def _check_names(self, headers: Headers, scope: Scope) -> None:
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        # The address at which the connection came in is no name that somebody else could have pointed here.
        address = _address(scope)
        if name.lower() not in self._names | {address, f"[{address}]"}:
            raise ApiError(
                403, "this server does not serve that host name: use its address, or permit the name with "
                "EDGE_CLIENT_SERVE_ALLOWED_HOSTS", code="host_not_allowed", kind="permission_error",
            )  # fmt: skip
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
                403, "pages of other sites may not call this server; permit an origin with "
                "EDGE_CLIENT_SERVE_ALLOWED_ORIGINS", code="origin_not_allowed", kind="permission_error",
            )  # fmt: skip

    def _check_key(self, headers: Headers, path: str) -> None:
        if self._key is None or not path.startswith("/v1"):
            return
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), self._key):
            raise ApiError(
                401, "this server requires its API key: open the address that `edge-client serve` printed, or send the "
                "key as `Authorization: Bearer …`",
                code="invalid_api_key", kind="authentication_error",
            )  # fmt: skip


def _address(scope: Scope) -> str:
    """At which the connection came in."""
    return str((scope.get("server") or ("", 0))[0]).removeprefix("::ffff:")


def _check_length(headers: Headers, limit: int) -> None:
    if "transfer-encoding" in headers:
        message = "the body comes in pieces: send it whole, with Content-Length"
        raise ApiError(411, message, code="length_required")
    if int(headers.get("content-length", "0")) > limit:
        raise ApiError(413, f"the body is larger than {limit} bytes: send less", code="body_too_large")
