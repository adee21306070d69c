"""What the world sees of the service, before its store and model are there too: port, health, entrance, metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from memory_service.access.audit import AuditLog
from memory_service.access.quotas import Quota, Rates
from memory_service.access.security import Security
from memory_service.api.answers import Answers
from memory_service.api.calls import Calls
from memory_service.api.entrance import Entrance
from memory_service.api.health import SERVICES, Health
from memory_service.api.limits import PING_INTERVAL_MS
from memory_service.errors import StoreUnavailable
from memory_service.ops.logs import logger
from memory_service.ops.metrics import MetricsPort
from memory_service.ops.tracing import Tracing
from memory_service.settings import Settings

_LAST_ANSWERS_S = 0.5
_FIRST_PAUSE_S = 0.02
_PAUSE_S = 0.1
_MOST_PAUSES = 5
_PUTTING_AWAY_S = 5.0
_NO_QUOTA = Quota()


class Services(grpc.GenericRpcHandler):
    """The handlers of services that come when the server has long started. Takes the place of the server for them."""

    def __init__(self, calls: Calls, answers: Answers) -> None:
        """calls, answers: what every handler goes through, see `entrance`."""
        self._calls = calls
        self._answers = answers
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._wrapped: dict[str, tuple[grpc.RpcMethodHandler, grpc.RpcMethodHandler]] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """As grpc.Server, for the generated `add_…_to_server`."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Only a server that has not started takes these; the generic ones do the same."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Called by grpc for each call."""
        method = handler_call_details.method
        for handlers in self._handlers:
            handler = handlers.service(handler_call_details)
            if handler is not None:
                break
        else:
            return None
        known, wrapped = self._wrapped.get(method, (None, None))
        if known is not handler or wrapped is None:
            wrapped = self._calls.wrapped(method, self._answers.wrapped(handler))
            self._wrapped[method] = (handler, wrapped)
        return wrapped


class Front:
    """The gRPC server with everything around the services. Calls are refused with NOT_READY until `open`."""

    def __init__(self, settings: Settings, also_listen: str = "") -> None:
        """also_listen: the private address of the one of several processes that writes.

        Raises InvalidInput, MissingFile, CorruptFile when the settings do not go together.
        """
        self.port = 0
        self.listening = False
        self._also_listen = also_listen
        self._settings = settings
        self.security = security = Security.of(settings)
        self.tracing = Tracing(settings.traces_endpoint)
        self.health = Health(settings.health_interval_s, settings.health_interval_s)
        self._quota = Quota(
            references=settings.quota_references,
            bytes=settings.quota_bytes,
            requests_per_s=settings.quota_requests_per_s,
        )
        self._audit = AuditLog(settings.audit_log) if settings.audit_log is not None else None
        self._metrics: MetricsPort | None = None
        self._calls = Calls(settings.default_deadline_s, settings.ingest_idle_timeout_s)
        self.services = Services(self._calls, Answers(security.keys))
        self._entrance = Entrance(
            self.services.service, security.keys, Rates(self.quota_of), self._audit, self.tracing
        )
        self.server = grpc.aio.server(options=_options(settings))
        self.server.add_generic_rpc_handlers((self._entrance,))

    @property
    def metrics_port(self) -> int:
        """Where Prometheus asks; 0: nowhere."""
        return self._metrics.port if self._metrics is not None else 0

    def quota_of(self, tenant: str) -> Quota:
        """The tenant's quota: its own or the settings'; the operator has none."""
        own = self.security.keys.quota_of(tenant) if self.security.keys is not None else None
        return own or (self._quota if tenant else _NO_QUOTA)

    async def listen(self) -> None:
        """Opens the ports; health is answered, everything else refused. Raises StoreUnavailable when one is taken."""
        settings, server = self._settings, self.server
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)
        if settings.reflection:
            names = (
                *SERVICES,
                health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
                reflection.SERVICE_NAME,
            )
            reflection.enable_server_reflection(names, server)
        try:
            self.port = self.security.add_port(server, settings.listen)
            if self._also_listen:
                server.add_insecure_port(self._also_listen)
        except RuntimeError as error:
            raise StoreUnavailable(
                f"cannot listen on {settings.listen}: the address is taken or not ours; choose another with --listen"
            ) from error
        if settings.metrics_listen:
            self._metrics = MetricsPort(settings.metrics_listen)
        await self.health.begin()
        await server.start()
        self.listening = True

    def open(self) -> None:
        """From here on calls are answered."""
        self._entrance.ready = True

    async def drain(self) -> None:
        """NOT_SERVING, no new calls, those under way get their grace."""
        logger().info("draining", grace_s=self._settings.shutdown_grace_s)
        await self.health.drain()
        await asyncio.sleep(self._settings.shutdown_delay_s)
        # A call that arrives while its connection is being closed is CANCELLED by gRPC, which tells nobody to try
        # again. Those who call all the time are told so before, until they pause.
        self._entrance.turn_away()
        await asyncio.sleep(_FIRST_PAUSE_S)
        refused = 0
        for _ in range(_MOST_PAUSES):
            if self._entrance.turned_away == refused:
                break
            refused = self._entrance.turned_away
            await asyncio.sleep(_PAUSE_S)

    async def stop(self) -> None:
        """Ends what is under way after its grace, and closes the ports."""
        grace_s = self._settings.shutdown_grace_s
        self._calls.name_what_is_cut()
        stopping = asyncio.create_task(self.server.stop(grace_s))
        idle = asyncio.create_task(self._calls.wait_until_idle())
        await asyncio.wait({stopping, idle}, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        # Health.Watch streams never end by themselves: without calls of ours there is nothing to wait for but the
        # last answers' way out.
        await self.server.stop(min(_LAST_ANSWERS_S, grace_s))
        await stopping
        # What was cut off has things to put away; gRPC does not wait for it.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._calls.wait_until_idle(), _PUTTING_AWAY_S)
        await self.health.close()
        await asyncio.to_thread(self._close_rest)

    def _close_rest(self) -> None:
        self.tracing.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._audit is not None:
            self._audit.close()


def _options(settings: Settings) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", settings.message_limit_bytes),
        ("grpc.max_send_message_length", -1),
        # Two services on one port would share the calls between them; the second is to fail instead.
        ("grpc.so_reuseport", int(settings.processes > 1)),
        # Devices may keep an idle channel alive through their NATs; their pings are no abuse.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS),
        ("grpc.keepalive_time_ms", 60_000),
    ]
    if settings.connection_age_s:
        options.append(("grpc.max_connection_age_ms", int(settings.connection_age_s * 1000)))
    return options
