"""Where every call of `memory.v1` comes in: who calls, under which request id, and whether he still may.

Entrance (outermost)    reads the API key before the request is decoded; caller and request id then go with the call
Revocation (innermost)  ends a stream whose key was revoked meanwhile
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import structlog

from memory_service.access import OPERATOR, Access, called_by, caller
from memory_service.calls import abort_with
from memory_service.errors import ServiceError
from memory_service.keys import KeyRing

OURS = "/memory.v1."
REQUEST_ID = "x-request-id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:/+=-]{1,64}")

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]]


def header(details: grpc.HandlerCallDetails, name: str) -> str | None:
    """The last value of a header of the call; None where it is absent or no text."""
    found = [value for key, value in details.invocation_metadata or () if key == name]
    return found[-1] if found and isinstance(found[-1], str) else None


class Entrance(grpc.aio.ServerInterceptor):
    """Goes around all other interceptors. Health and reflection are open to everybody: they tell of no tenant."""

    def __init__(self, keys: KeyRing | None) -> None:
        """keys: None lets everybody in as the operator."""
        self._keys = keys

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        """Called by grpc for each call."""
        method = handler_call_details.method
        if not method.startswith(OURS):
            return await continuation(handler_call_details)
        given = header(handler_call_details, REQUEST_ID)
        request_id = given if given and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        try:
            access = self._access(handler_call_details)
        except ServiceError as error:
            return _refusing(method, error, request_id)
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return handler
        return self._wrapped(handler, access, request_id)

    def _access(self, details: grpc.HandlerCallDetails) -> Access:
        if self._keys is None:
            return OPERATOR
        return self._keys.access_of(header(details, "authorization"))

    def _wrapped(self, handler: Any, access: Access, request_id: str) -> grpc.RpcMethodHandler:
        """The handler with its caller; those of streams are coroutines too here (see CallInterceptor)."""
        kind = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
        behaviour = getattr(handler, kind)

        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            with called_by(access), _request(request_id, access):
                context.set_trailing_metadata(((REQUEST_ID, request_id),))
                return await behaviour(request, context)

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(call, handler.request_deserializer, handler.response_serializer)


class Revocation(grpc.aio.ServerInterceptor):
    """Checks the key of a stream again before each of its answers. Stands next to the handlers."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        """Called by grpc for each call."""
        handler: Any = await continuation(handler_call_details)
        if (
            handler is None
            or not handler.response_streaming
            or not handler_call_details.method.startswith(OURS)
        ):
            return handler
        kind = _KINDS[bool(handler.request_streaming), True]
        behaviour = getattr(handler, kind)

        async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncGenerator[Any, None]:
            access = caller()
            async with contextlib.aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    self._keys.check(access)
                    yield response

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(call, handler.request_deserializer, handler.response_serializer)


_KINDS = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}


@contextlib.contextmanager
def _request(request_id: str, access: Access) -> Iterator[None]:
    """Every log line of the call, from whichever thread, names the request and the key."""
    who = {"key": access.key_id} if access.key_id else {}
    with structlog.contextvars.bound_contextvars(request_id=request_id, **who):
        yield


def _refusing(method: str, error: ServiceError, request_id: str) -> grpc.RpcMethodHandler:
    """Ends the call without reading its request."""

    async def refuse(_: Any, context: grpc.aio.ServicerContext) -> None:
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await abort_with(method, error, time.perf_counter(), context)

    return grpc.stream_stream_rpc_method_handler(refuse)
