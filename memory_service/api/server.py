"""The service: loaded, listening, draining, closed."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import os
import resource
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]
from prometheus_client.registry import Collector

from memory3.errors import Memory3Error, MissingFile
from memory_service.access.quotas import Quota, Rates, WriteGuard
from memory_service.access.tls import Security
from memory_service.api.backup_ages import BackupAges
from memory_service.api.gauges import StoreGauges
from memory_service.api.health import Health
from memory_service.api.ingestion import Ingestion
from memory_service.api.interceptors import METHODS, SERVICES, Calls
from memory_service.api.knowledge_bases import KnowledgeBases, Operations
from memory_service.api.models import PING_INTERVAL_MS, Models
from memory_service.api.retrieval import Retrieval
from memory_service.budget import Budget
from memory_service.encoder import Encoder
from memory_service.errors import KnowledgeBaseExists, StoreUnavailable
from memory_service.ops.reads import ReadCounter
from memory_service.ops.rewriting import Rewriter
from memory_service.ops.translating import TranslatingStore
from memory_service.service import Runtime
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE, Settings
from memory_service.stores.address import parse_address
from memory_service.stores.opening import open_store
from memory_service.stores.store import Query, Store
from memory_service.telemetry.logs import logger, traces
from memory_service.telemetry.metrics import REGISTRY, metrics_port
from memory_service.write.cold_start import LateMemories
from protos.memory.v1 import (
    ingestion_pb2_grpc,
    knowledge_bases_pb2_grpc,
    models_pb2_grpc,
    operations_pb2_grpc,
    retrieval_pb2_grpc,
)

_LAST_ANSWERS_S = 0.5
_FIRST_PAUSE_S = 0.02
_PAUSE_S = 0.1
_MOST_PAUSES = 6
_PUTTING_AWAY_S = 5.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 32 << 20

Result = TypeVar("Result")


class Server:
    """One service process, on the event loop that makes it; the store and the model have threads."""

    def __init__(self, settings: Settings) -> None:
        """Raises InvalidInput, MissingFile, CorruptFile when the settings do not go together."""
        self.port = self.metrics_port = 0
        self.store: Store | None = None
        self._settings = settings
        self._security = Security.of(settings)
        if settings.port_file is not None:
            if not settings.port_file.parent.is_dir():
                raise MissingFile(f"the folder of port_file {settings.port_file} does not exist: make it")
            settings.port_file.unlink(missing_ok=True)  # of a process before: others take it for ready
        self._draining = asyncio.Event()
        self._late: LateMemories | None = None
        self._reads: ReadCounter | None = None
        self._rewriter: Rewriter | None = None
        self._closing = contextlib.ExitStack()
        self._budget = Budget(settings.max_ingest_calls, settings.ingest_memory_bytes, settings.ingest_tenant_share)
        self._health = Health(settings.health_interval_s)
        self._calls = Calls(
            self._security.keys,
            Rates(self._quota_of),
            self._budget,
            certificates=settings.tls_client_ca is not None,
            default_deadline_s=settings.default_deadline_s,
            stream_idle_s=settings.ingest_idle_timeout_s,
        )
        traced = self._closing.enter_context(
            traces(settings.traces_endpoint, lambda details: details.method in METHODS)
        )
        self._grpc = grpc.aio.server(interceptors=[*traced, self._calls], options=_options(settings))

    def _quota_of(self, tenant: str) -> Quota:
        """The tenant's quota: its own limits and the settings'; the operator has none."""
        if not tenant:
            return Quota()
        settings = self._settings
        default = Quota(
            references=settings.quota_references,
            bytes=settings.quota_bytes,
            requests_per_s=settings.quota_requests_per_s,
        )
        return default if self._security.keys is None else self._security.keys.quota_of(tenant, default)

    def open_metrics(self) -> None:
        """Opens the metrics port, whose `/live` answers while the store is opened and the model is loaded."""
        if self._settings.metrics_listen and not self.metrics_port:
            port = metrics_port(self._settings.metrics_listen, asyncio.get_running_loop())
            self.metrics_port = self._closing.enter_context(port)

    async def start(self, encoder: Encoder, store: Store) -> None:
        """Answers calls when it returns. The store is closed by `stop`, or at once where this fails.

        Raises StoreUnavailable for a taken address, InvalidInput for a place that cannot hold backups.
        """
        try:
            await self._start(encoder, store)
        except BaseException:
            self._draining.set()
            await self._close()
            raise

    async def _start(self, encoder: Encoder, store: Store) -> None:
        settings, address = self._settings, parse_address(self._settings.store)
        self.store = self._closing.enter_context(contextlib.closing(store))
        translating = TranslatingStore(store, encoder)
        guard = WriteGuard(store, self._quota_of, encoder.description.payload_bytes)
        runtime = Runtime(settings, translating, guard, encoder, self._draining, self._budget)
        self._closing.callback(runtime.close)
        self._register(StoreGauges(runtime, self._quota_of, lambda: self._health.up is False))
        if settings.backups:
            self._register(self._closing.enter_context(contextlib.closing(BackupAges(store, settings))))
        if DEFAULT_KNOWLEDGE_BASE not in {base.name for base in store.knowledge_bases()}:
            with contextlib.suppress(KnowledgeBaseExists):  # another pod starts, too
                store.create(DEFAULT_KNOWLEDGE_BASE, "", encoder.description.identity)
        late = self._late = LateMemories(runtime)
        reads = self._reads = ReadCounter(runtime)
        rewriter = self._rewriter = Rewriter(runtime, translating)
        self._add_servicers(runtime, late, reads, rewriter)

        def begin() -> None:
            late.begin()
            rewriter.begin()

        await self._warm_up(runtime)
        begin()
        reads.start()
        self.port = self._listen()
        self.open_metrics()
        await self._health.watch(runtime, None if address.host else address.path, begin)
        await self._grpc.start()
        self._write_port_file()
        logger().info(
            "listening",
            listen=settings.listen,
            port=self.port,
            metrics_port=self.metrics_port,
            store=str(address),  # shown without its password
            keys=self._security.keys is not None,
            tls=self._security.credentials is not None,
        )

    def _register(self, collector: Collector) -> None:
        """Shows the collector's metrics until the service stops."""
        REGISTRY.register(collector)
        self._closing.callback(REGISTRY.unregister, collector)

    def _add_servicers(self, runtime: Runtime, late: LateMemories, reads: ReadCounter, rewriter: Rewriter) -> None:
        server = self._grpc
        retrieval_pb2_grpc.add_RetrievalServicer_to_server(Retrieval(runtime, late, reads), server)
        ingestion_pb2_grpc.add_IngestionServicer_to_server(Ingestion(runtime, late), server)
        knowledge_bases_pb2_grpc.add_KnowledgeBasesServicer_to_server(KnowledgeBases(runtime, reads), server)
        models_pb2_grpc.add_ModelsServicer_to_server(Models(runtime), server)
        operations_pb2_grpc.add_OperationsServicer_to_server(Operations(runtime, late, rewriter), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, server)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection((*SERVICES, health_name, reflection.SERVICE_NAME), server)

    def _listen(self) -> int:
        """The port that the address opens; raises StoreUnavailable for one that is taken."""
        listen, credentials = self._settings.listen, self._security.credentials
        try:
            if credentials is None:
                return self._grpc.add_insecure_port(listen)
            return self._grpc.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise _cannot_listen(listen) from error

    def _write_port_file(self) -> None:
        """Others wait for the file: it is there whole or not at all."""
        file = self._settings.port_file
        if file is not None:
            temporary = file.with_name(f".{file.name}.{os.getpid()}")
            temporary.write_text(f"{self.port}\n", encoding="utf-8")
            temporary.replace(file)

    async def _warm_up(self, runtime: Runtime) -> None:
        """Uses the model and the indices once, so that the first call does not pay for it; names refused ones."""
        encoder, store, warm_up = runtime.encoder, runtime.store, self._settings.warm_up
        if warm_up:
            await runtime.run("encode", encoder.encode, ["The first reference."])
        vector = np.zeros((1, encoder.description.identity.dimension), np.float32)
        vector[0, 0] = 1.0
        for base in store.knowledge_bases():
            problem = runtime.problem_of(base)
            try:
                if warm_up and not problem:
                    await runtime.run("read", store.retrieve, base, Query(vector, 1))
            except Memory3Error as error:
                problem = str(error)
            if problem:
                logger().error("knowledge_base_refused", knowledge_base=base.name, problem=problem)

    async def stop(self) -> None:
        """NOT_SERVING, no new calls, those under way get their grace, then the store is closed. Idempotent."""
        if self._draining.is_set():
            return
        logger().info("draining", grace_s=self._settings.shutdown_grace_s)
        await self._health.drain()
        await asyncio.sleep(self._settings.shutdown_delay_s)
        # New calls are refused until clients pause: gRPC cancels what arrives while a connection closes, unretryably.
        self._calls.closed = True
        refused, pause_s = -1, _FIRST_PAUSE_S
        for _ in range(_MOST_PAUSES):
            if self._calls.turned_away == refused:
                break
            refused = self._calls.turned_away
            await asyncio.sleep(pause_s)
            pause_s = _PAUSE_S
        self._draining.set()
        await self._end_calls()
        await self._close()
        logger().info("stopped")

    async def _close(self) -> None:
        """End what `start` began, in the reverse order."""
        await self._health.close()
        if self._late is not None:
            await self._late.stop()
        if self._rewriter is not None:
            await self._rewriter.stop()
        if self._reads is not None:
            await self._reads.stop()
        await asyncio.to_thread(self._closing.close)

    async def _end_calls(self) -> None:
        """Ends what is under way after its grace, and closes the port."""
        grace_s = self._settings.shutdown_grace_s
        self._calls.stopping = True
        stopping = asyncio.create_task(self._grpc.stop(grace_s))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._calls.idle.wait(), grace_s)
        # Health.Watch streams never end by themselves: without calls of ours there is nothing to wait for but the
        # last answers' way out.
        await self._grpc.stop(min(_LAST_ANSWERS_S, grace_s))
        await stopping
        # gRPC does not wait for what a cut call has to put away.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._calls.idle.wait(), _PUTTING_AWAY_S)


def _options(settings: Settings) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", settings.message_limit_bytes),
        ("grpc.max_send_message_length", -1),
        # Two services on one port would share the calls between them; the second is to fail instead.
        ("grpc.so_reuseport", 0),
        # Devices may keep an idle channel alive through their NATs; their pings are no abuse.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS),
        ("grpc.keepalive_time_ms", 60_000),
    ]
    if settings.connection_age_s:
        options.append(("grpc.max_connection_age_ms", int(settings.connection_age_s * 1000)))
    return options


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As asyncio.run, on uvloop where it is installed: it spends less on each wake-up, several a call."""
    # Keeps glibc from giving a response's 200 kB back to the system, to fault them in again for the next: 0.25 ms.
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            libc.mallopt(option, _KEPT_BYTES)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard one, which it returns: a knowledge base takes five."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def keep_what_is_loaded() -> None:
    """For a service that has started: modules, model and indices are left out of garbage collection."""
    gc.collect()
    gc.freeze()


def _cannot_listen(address: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot listen on {address}: the address is taken or not ours; choose another with --listen"
    )


def require_free(listen: str) -> None:
    """Raise StoreUnavailable where another program listens there, before a model is loaded in vain."""
    host, _, port = listen.rpartition(":")
    if listen.startswith("unix:") or not port.isdigit():
        return
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return  # gRPC resolves names in more ways, and says what is wrong
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as tried:
            _require_unbound(tried, address, listen)


def _require_unbound(tried: socket.socket, address: Any, listen: str) -> None:
    tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        tried.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _cannot_listen(listen) from error


async def serve_until_signal(settings: Settings, load_encoder: Callable[[], Encoder]) -> None:
    """Opens the store, loads the model, listens and serves until SIGTERM or SIGINT, then stops gracefully.

    Raises what `open_store` and `load_encoder` raise; without either only the metrics port was open.
    """
    require_free(settings.listen)
    raise_descriptor_limit()
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.set)
    server = Server(settings)
    with contextlib.ExitStack() as closing:
        server.open_metrics()
        store = await asyncio.to_thread(open_store, settings.store, settings.store_options())
        closing.callback(store.close)
        try:
            encoder = await asyncio.to_thread(load_encoder)
            if not signalled.is_set():
                closing.pop_all()
                await server.start(encoder, store)
                keep_what_is_loaded()
                await signalled.wait()
        finally:
            await server.stop()
