"""Where every call of `memory.v1` comes in: who calls, how often he may, under which request id, and what became of it.

Entrance  outermost: API key and rate before the request is decoded; caller, request id and trace then go with the call
Calls     deadline, errors with details (calls.py)
Answers   innermost, for streams: is the key still good; documents are counted (answers.py)

No interceptors of gRPC: each of those is a coroutine more for every call.
"""

from __future__ import annotations

import asyncio
import functools
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from prometheus_client import Counter, Gauge, Histogram

from memory_service.access.audit import AUDITED, AuditLog
from memory_service.access.authorization import OPERATOR, Access, set_caller
from memory_service.access.keys import KeyRing
from memory_service.access.quotas import Rates
from memory_service.api.call_record import CallRecord, record
from memory_service.api.calls import abort_with
from memory_service.errors import NotReady, ServiceError, ShuttingDown, Unauthenticated
from memory_service.ops.metrics import CALL_SECONDS, CALLS, UNDER_WAY
from memory_service.ops.tracing import Tracing

OURS = "/memory.v1."
REQUEST_ID = "x-request-id"
_NAME_CHARACTERS = 200
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:/+=-]{1,64}")

Inner = Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None]


def header(details: grpc.HandlerCallDetails, name: str) -> str | None:
    """The last value of a header of the call; None where it is absent or no text."""
    found = [value for key, value in details.invocation_metadata or () if key == name]
    return found[-1] if found and isinstance(found[-1], str) else None


class Entrance(grpc.GenericRpcHandler):
    """Before the handlers of `memory.v1`. Health and reflection are open to everybody: they tell of no tenant."""

    def __init__(
        self, inner: Inner, keys: KeyRing | None, rates: Rates, audit: AuditLog | None, tracing: Tracing
    ) -> None:
        """inner: finds the handler of a call. keys: None lets everybody in as the operator."""
        self.ready = False
        self.turned_away = 0
        self._stopping = False
        self._inner = inner
        self._keys = keys
        self._rates = rates
        self._audit = audit
        self._tracing = tracing

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Called by grpc for each call."""
        method = handler_call_details.method
        if not method.startswith(OURS):
            return None
        given = header(handler_call_details, REQUEST_ID)
        request_id = given if given and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        access: Access | None = None
        try:
            access = self._access(handler_call_details)
            self._rates.admit(access.tenant)
            if not self.ready:
                raise self._closed()
        except ServiceError as error:
            # A stranger may call methods by any name: each would be a series that is kept for good.
            known = self.ready and self._inner(handler_call_details) is not None
            CALLS.labels(method if known else "", error.code.name).inc()
            return self._refusing(method, error, access, request_id)
        handler = self._inner(handler_call_details)
        if handler is None:
            return None
        parent = header(handler_call_details, "traceparent")
        return self._wrapped(handler, method, access, request_id, parent)

    def turn_away(self) -> None:
        """From here on calls are refused with UNAVAILABLE and a time to retry, and counted in `turned_away`."""
        self.ready, self._stopping = False, True

    def _closed(self) -> ServiceError:
        if not self._stopping:
            return NotReady("the service loads its store and model: try again in some seconds")
        self.turned_away += 1
        return ShuttingDown("the service stops: ask another replica, or this one after its restart")

    def _access(self, details: grpc.HandlerCallDetails) -> Access:
        if self._keys is None:
            return OPERATOR
        return self._keys.access_of(header(details, "authorization"))

    def _wrapped(
        self, handler: Any, method: str, access: Access, request_id: str, traceparent: str | None
    ) -> grpc.RpcMethodHandler:
        """The handler with its caller; those of streams are coroutines too here (see Calls)."""
        kind = KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
        behaviour = getattr(handler, kind)
        measured = _measured(method)

        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            # Each call is a task with context variables of its own: what is set here ends with it.
            noted, started, left = CallRecord(), time.perf_counter(), False
            record.set(noted)
            set_caller(access)
            structlog.contextvars.bind_contextvars(
                request_id=request_id, **({"key": access.key_id} if access.key_id else {})
            )
            context.set_trailing_metadata(((REQUEST_ID, request_id),))
            measured.under_way.inc()
            try:
                if not self._tracing.on:
                    return await behaviour(request, context)
                with self._tracing.call(method, request_id, traceparent, context):
                    return await behaviour(request, context)
            except asyncio.CancelledError:
                left = True
                raise
            finally:
                measured.under_way.dec()
                elapsed_s = time.perf_counter() - started
                measured.seconds.observe(elapsed_s)
                code = "CANCELLED" if left else code_name(context)
                (measured.ok if code == "OK" else CALLS.labels(method, code)).inc()
                if self._audit is not None and method in AUDITED:
                    where = noted.knowledge_base or _named_in(request)
                    denied = code == grpc.StatusCode.PERMISSION_DENIED.name and not noted.outcomes
                    write = self._audit.write_refusal if denied else self._audit.write
                    write(
                        method.rpartition("/")[2], access, request_id=request_id, knowledge_base=where, code=code,
                        reason=noted.reason, peer=context.peer(), ms=round(elapsed_s * 1000),
                        documents=dict(noted.outcomes) or None,
                    )  # fmt: skip

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(call, handler.request_deserializer, handler.response_serializer)

    def _refusing(
        self, method: str, error: ServiceError, access: Access | None, request_id: str
    ) -> grpc.RpcMethodHandler:
        """Ends the call without reading its request. access: the caller's, None for a key that is not good."""
        if isinstance(error, Unauthenticated) and error.key_id:
            access = Access(error.key_id, error.tenant)

        async def refuse(_: Any, context: grpc.aio.ServicerContext) -> None:
            if self._audit is not None and method in AUDITED:
                self._audit.write_refusal(
                    method.rpartition("/")[2], access, request_id=request_id, code=error.code.name,
                    reason=error.reason, peer=context.peer(),
                )  # fmt: skip
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                await abort_with(method, error, time.perf_counter(), context)

        return grpc.stream_stream_rpc_method_handler(refuse)


def code_name(context: grpc.aio.ServicerContext) -> str:
    """The status of a call that has ended; one that its client cancelled has none and is CANCELLED."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return "CANCELLED" if context.cancelled() else "OK"


def _named_in(request: Any) -> str:
    """The knowledge base that a unary request names; what is too long for one is cut."""
    return str(getattr(request, "name", "") or getattr(request, "knowledge_base", ""))[:_NAME_CHARACTERS]


KINDS = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}


@dataclass(frozen=True)
class _Measured:
    """The metrics of one method, found once."""

    seconds: Histogram
    under_way: Gauge
    ok: Counter


@functools.lru_cache(maxsize=64)
def _measured(method: str) -> _Measured:
    return _Measured(CALL_SECONDS.labels(method), UNDER_WAY.labels(method), CALLS.labels(method, "OK"))
