"""What every call of `memory.v1` passes on its way to a servicer, which gets a `Call` instead of gRPC's context.

Who calls and whether it may, checked again in streams; request id, deadline, errors as google.rpc.Status, metrics, and
a line in the log for what was refused, streamed, written or administered. OpenTelemetry's interceptor is outside of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from memory3.errors import Memory3Error
from memory_service.access.authorization import NOBODY, OPERATOR, Access
from memory_service.access.keys import KeyRing
from memory_service.access.quotas import Rates
from memory_service.access.tls import identities
from memory_service.budget import Budget
from memory_service.errors import DeadlineExceeded, MalformedRequest, ServiceError, ShuttingDown, described, to_status
from memory_service.telemetry.logs import logger
from memory_service.telemetry.metrics import CALL_SECONDS, CALLS, UNDER_WAY
from protos.memory.v1 import ingestion_pb2, knowledge_bases_pb2, models_pb2, operations_pb2, retrieval_pb2

_SERVICES = [
    service
    for file in (retrieval_pb2, ingestion_pb2, knowledge_bases_pb2, models_pb2, operations_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
]
SERVICES = tuple(service.full_name for service in _SERVICES)
METHODS = frozenset(f"/{service.full_name}/{method.name}" for service in _SERVICES for method in service.methods)
"""As the wire names them. Health and reflection are open to everybody; callers may send any other name."""
_INGESTING = frozenset(f"/memory.v1.Ingestion/{name}" for name in ("Ingest", "Upsert"))
_LOGGED = ("Ingest", "Upsert", "Delete", "Create", "Export", "Fetch", "Cool")
"""Names of methods that begin so have a line in the log whatever their outcome: writes, administration, streams."""

_USE_LOGGED_EVERY_S = 3600.0
"""Of a key: its retrievals have no lines, and whether it is still used must be seen before it is revoked."""

REQUEST_ID = "x-request-id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:/+=-]{1,64}")
_STATUS_DETAILS = "grpc-status-details-bin"
_NAME_CHARACTERS = 200

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]]


class Call:
    """One call, as a servicer gets it. access: who makes it.

    knowledge_base and outcomes (of documents, by what became of them) go to the log.
    """

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self.context = context
        self.access: Access = NOBODY
        self.knowledge_base = ""
        self.outcomes: Counter[str] = Counter()


@dataclass(frozen=True)
class _Admitted:
    """A call that is let in. access: None where the client's certificate decides. behaviour: the servicer's method.

    decode: bytes to a request. many: whether the client sends a stream of them.
    """

    method: str
    request_id: str
    access: Access | None
    behaviour: Callable[[Any, Call], Any]
    decode: Callable[[bytes], Any]
    many: bool


class Calls(grpc.aio.ServerInterceptor):
    """Lets calls of known callers in, within their rates; counts, times and logs them; turns errors into statuses.

    closed: new calls are refused; turned_away: how many were. stopping: what is cancelled now was cut off.
    idle: no call is under way.
    """

    def __init__(
        self,
        keys: KeyRing | None,
        rates: Rates,
        budget: Budget,
        *,
        certificates: bool,
        default_deadline_s: float,
        stream_idle_s: float,
    ) -> None:
        """keys: None lets every caller in as the operator. certificates: clients prove themselves by one (mTLS).

        default_deadline_s: of unary calls without one; stream_idle_s: for a client to take a message.
        """
        self.closed = self.stopping = False
        self.turned_away = 0
        self._keys = keys
        self._rates = rates
        self._budget = budget
        self._certificates = certificates
        self._default_deadline_s = default_deadline_s
        self._stream_idle_s = stream_idle_s
        self._used: dict[str, float] = {}
        self._under_way = 0
        self.idle = asyncio.Event()
        self.idle.set()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """See grpc.aio.ServerInterceptor."""
        method = handler_call_details.method
        handler: Any = await continuation(handler_call_details)
        if handler is None or method not in METHODS:
            return handler
        given = _header(handler_call_details, REQUEST_ID)
        request_id = given if given and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        access, refusal = self._admitted(handler_call_details)
        if refusal is not None:

            async def refuse(_: Any, context: grpc.aio.ServicerContext) -> None:
                async with self._accounted(method, request_id, context) as call:
                    call.access = access or NOBODY
                    raise refusal

            return grpc.stream_stream_rpc_method_handler(refuse)  # which does not read the request
        streams = (handler.request_streaming, handler.response_streaming)
        kind = "_".join("stream" if one else "unary" for one in streams)
        decode = _decoder(handler.request_deserializer, method)
        admitted = _Admitted(method, request_id, access, getattr(handler, kind), decode, handler.request_streaming)
        if method in _INGESTING and not handler.request_streaming:
            return handler._replace(
                request_streaming=True,
                response_streaming=True,
                unary_unary=None,
                stream_stream=functools.partial(self._read_when_admitted, admitted),
                request_deserializer=None,
            )
        made = functools.partial(self._streaming if handler.response_streaming else self._unary, admitted)
        return handler._replace(**{kind: made, "request_deserializer": None})

    async def _unary(self, admitted: _Admitted, raw: bytes, context: grpc.aio.ServicerContext) -> Any:
        async with self._accounted(admitted.method, admitted.request_id, context) as call:
            self._enter(call, admitted.access)
            request = _named(admitted.decode(raw), call)
            async with asyncio.timeout(self._left_s(context)):
                return await admitted.behaviour(request, call)

    async def _streaming(self, admitted: _Admitted, raw: Any, context: grpc.aio.ServicerContext) -> None:
        decode = admitted.decode
        async with self._accounted(admitted.method, admitted.request_id, context) as call:
            self._enter(call, admitted.access)
            request = (decode(one) async for one in raw) if admitted.many else _named(decode(raw), call)
            ingests = admitted.method in _INGESTING
            with self._budget.call(call.access.tenant) if ingests else contextlib.nullcontext():
                async with contextlib.aclosing(admitted.behaviour(request, call)) as responses:
                    await self._write_all(responses, call)

    async def _read_when_admitted(self, admitted: _Admitted, raw: Any, context: grpc.aio.ServicerContext) -> None:
        """Leaves a large request with the client until the call is admitted; on the wire it is unary."""
        async with self._accounted(admitted.method, admitted.request_id, context) as call:
            self._enter(call, admitted.access)
            with self._budget.call(call.access.tenant):
                async with asyncio.timeout(self._left_s(context)):
                    if (message := await anext(aiter(raw), None)) is None:
                        raise MalformedRequest(f"the call of {admitted.method} has no message")
                    request = _named(admitted.decode(message), call)
                    response = await admitted.behaviour(request, call)
                await self._write(response, context)

    def _left_s(self, context: grpc.aio.ServicerContext) -> float:
        """Until the deadline of a unary call; ours where it has none."""
        remaining_s = context.time_remaining()
        return self._default_deadline_s if remaining_s is None else max(remaining_s, 0.0)

    def _admitted(self, details: grpc.HandlerCallDetails) -> tuple[Access | None, ServiceError | None]:
        """Who calls, None where the client's certificate decides, and why the call is refused, None where it is not."""
        access: Access | None = OPERATOR
        try:
            if self._keys is not None:
                authorization = _header(details, "authorization")
                by_certificate = authorization is None and self._certificates
                access = None if by_certificate else self._keys.access_of(authorization)
            if self.closed:
                self.turned_away += 1
                raise ShuttingDown("the service stops: ask another replica, or this one after its restart")
            if access is not None:
                self._rates.admit(access.tenant)
        except ServiceError as error:
            return access, error
        return access, None

    def _enter(self, call: Call, access: Access | None) -> None:
        """Gives the call its caller, whose first call of an hour is logged; raises CertificateUnknown, RateExceeded."""
        if access is None and self._keys is not None:
            access = self._keys.access_of_certificate(identities(call.context))
            self._rates.admit(access.tenant)
        call.access = access or NOBODY
        if key := call.access.key_id:
            now = time.monotonic()
            if now - self._used.get(key, -math.inf) >= _USE_LOGGED_EVERY_S:
                self._used[key] = now
                logger().info("key_used", key=key, tenant=call.access.tenant, peer=call.context.peer())

    @contextlib.asynccontextmanager
    async def _accounted(self, method: str, request_id: str, context: grpc.aio.ServicerContext) -> AsyncIterator[Call]:
        call, started, code, level = Call(context), time.perf_counter(), "OK", logging.INFO
        failure: dict[str, Any] = {}
        structlog.contextvars.bind_contextvars(request_id=request_id)
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
        self._under_way += 1
        self.idle.clear()
        UNDER_WAY.labels(method).inc()
        try:
            yield call
        except asyncio.CancelledError:
            # By a client that left, which is no error, or by the end of the grace period.
            code, level = "CANCELLED", logging.WARNING if self.stopping else logging.INFO
            raise
        except Exception as error:
            if isinstance(error, TimeoutError):
                error = DeadlineExceeded(f"{method} took longer than its deadline: send a longer one or fewer queries")
            status_code, reason, message, _ = described(error)
            code, failure = status_code.name, {"reason": reason, "message": message}
            if not isinstance(error, Memory3Error):
                level, failure["exc_info"] = logging.ERROR, error
            status = to_status(error)
            metadata = ((REQUEST_ID, request_id), (_STATUS_DETAILS, status.SerializeToString()))
            await context.abort(status_code, status.message, metadata)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.idle.set()
            seconds = time.perf_counter() - started
            UNDER_WAY.labels(method).dec()
            CALL_SECONDS.labels(method).observe(seconds)
            CALLS.labels(method, code).inc()
            if code != "OK" or method.rpartition("/")[2].startswith(_LOGGED):
                who = {
                    "key": call.access.key_id,
                    "tenant": call.access.tenant,
                    "knowledge_base": call.knowledge_base,
                    "documents": dict(call.outcomes),
                    "peer": context.peer(),
                }
                shown = {name: value for name, value in who.items() if value}
                logger().log(level, "call", method=method, code=code, ms=round(1000 * seconds, 2), **failure, **shown)

    async def _write_all(self, responses: AsyncIterator[Any], call: Call) -> None:
        """Raises what `responses` and `_write` raise, Unauthenticated for a key that is revoked meanwhile."""
        async for response in responses:
            if self._keys is not None:
                self._keys.check(call.access)
            await self._write(response, call.context)

    async def _write(self, response: Any, context: grpc.aio.ServicerContext) -> None:
        """Raises TimeoutError for a client that takes nothing, CancelledError for one that is gone."""
        try:
            async with asyncio.timeout(self._stream_idle_s):
                await context.write(response)
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            # Writing often finds out that a client left before grpc cancels the call.
            raise asyncio.CancelledError from error


def _header(details: grpc.HandlerCallDetails, name: str) -> str | None:
    """The last value of a header of the call; None where it is absent or no text."""
    found = [value for key, value in details.invocation_metadata or () if key == name]
    return found[-1] if found and isinstance(found[-1], str) else None


def _decoder(deserializer: Callable[[bytes], Any] | None, method: str) -> Callable[[bytes], Any]:
    def decode(raw: bytes) -> Any:
        try:
            return raw if deserializer is None else deserializer(raw)
        except DecodeError:
            raise MalformedRequest(f"the request of {method} is another message, or holds invalid UTF-8") from None

    return decode


def _named(request: Any, call: Call) -> Any:
    """The request, after noting the knowledge base that it names; what is too long for a name is cut."""
    name = getattr(request, "name", "") or getattr(request, "knowledge_base", "")
    call.knowledge_base = str(name)[:_NAME_CHARACTERS]
    return request
