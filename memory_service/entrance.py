"""Where every call of `memory.v1` comes in: who calls, how often he may, under which request id, and what became of it.

Entrance  outermost: API key and rate before the request is decoded; caller, request id and trace then go with the call
Calls     deadline, errors with details (calls.py)
Answers   innermost, for streams: is the key still good; documents are counted (answers.py)
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import structlog

from memory_service.access import OPERATOR, Access, called_by
from memory_service.audit import AUDITED, AuditLog
from memory_service.call_record import CallRecord, record
from memory_service.calls import abort_with
from memory_service.errors import NotReady, ServiceError
from memory_service.keys import KeyRing
from memory_service.metrics import CALL_SECONDS, CALLS, UNDER_WAY
from memory_service.quotas import Rates
from memory_service.tracing import Tracing

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

    def __init__(self, keys: KeyRing | None, rates: Rates, audit: AuditLog | None, tracing: Tracing) -> None:
        """keys: None lets everybody in as the operator."""
        self.ready = False
        self._keys = keys
        self._rates = rates
        self._audit = audit
        self._tracing = tracing

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
            self._rates.admit(access.tenant)
            if not self.ready:
                raise NotReady("the service loads its store and model: try again in some seconds")
        except ServiceError as error:
            CALLS.labels(method if self.ready else "", error.code.name).inc()
            return _refusing(method, error, request_id)
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return handler
        parent = header(handler_call_details, "traceparent")
        return self._wrapped(handler, method, access, request_id, parent)

    def _access(self, details: grpc.HandlerCallDetails) -> Access:
        if self._keys is None:
            return OPERATOR
        return self._keys.access_of(header(details, "authorization"))

    def _wrapped(
        self, handler: Any, method: str, access: Access, request_id: str, traceparent: str | None
    ) -> grpc.RpcMethodHandler:
        """The handler with its caller; those of streams are coroutines too here (see CallInterceptor)."""
        kind = KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
        behaviour = getattr(handler, kind)
        seconds, under_way = CALL_SECONDS.labels(method), UNDER_WAY.labels(method)

        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            noted, started = CallRecord(), time.perf_counter()
            token = record.set(noted)
            under_way.inc()
            try:
                with (
                    called_by(access),
                    _request(request_id, access),
                    self._tracing.call(method, request_id, traceparent, context),
                ):
                    context.set_trailing_metadata(((REQUEST_ID, request_id),))
                    return await behaviour(request, context)
            finally:
                record.reset(token)
                under_way.dec()
                elapsed_s = time.perf_counter() - started
                seconds.observe(elapsed_s)
                code = code_name(context)
                CALLS.labels(method, code).inc()
                if self._audit is not None and method in AUDITED:
                    where = noted.knowledge_base or _named_in(request)
                    self._audit.write(
                        method.rpartition("/")[2], access, request_id=request_id, knowledge_base=where, code=code,
                        peer=context.peer(), ms=round(elapsed_s * 1000), documents=dict(noted.outcomes) or None,
                    )  # fmt: skip

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(call, handler.request_deserializer, handler.response_serializer)


def code_name(context: grpc.aio.ServicerContext) -> str:
    """The status of a call that has ended; one that its client cancelled has none and is CANCELLED."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return "CANCELLED" if context.cancelled() else "OK"


def _named_in(request: Any) -> str:
    """The knowledge base that a unary request names."""
    return str(getattr(request, "name", "") or getattr(request, "knowledge_base", ""))


KINDS = {
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
