"""The gRPC server: built from settings, encoder and store; ready, serving, draining, closed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from memory_service.calls import CallInterceptor
from memory_service.carrying import CarryingExecutor
from memory_service.catalogue import Catalogue
from memory_service.encoder import Encoder
from memory_service.entrance import Entrance, Revocation
from memory_service.errors import KnowledgeBaseNotFound, StoreUnavailable
from memory_service.ingest_stream import Threads
from memory_service.ingestion import Ingestion
from memory_service.knowledge_bases import KnowledgeBases
from memory_service.limits import PING_INTERVAL_MS
from memory_service.logs import logger
from memory_service.models import Models
from memory_service.retrieval import Retrieval
from memory_service.security import Security
from memory_service.settings import Settings
from memory_service.stores import Store, open_store
from memory_service.stores.address import parse_address
from protos.memory.v1 import (
    ingestion_pb2,
    ingestion_pb2_grpc,
    knowledge_bases_pb2,
    knowledge_bases_pb2_grpc,
    models_pb2,
    models_pb2_grpc,
    retrieval_pb2,
    retrieval_pb2_grpc,
)

SERVICES = tuple(
    service.full_name
    for module in (retrieval_pb2, ingestion_pb2, knowledge_bases_pb2, models_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
)

_LAST_ANSWERS_S = 0.5


class Server:
    """One service process, on the event loop that called `start`; the store and the model have threads."""

    def __init__(self, settings: Settings, encoder: Encoder, store: Store) -> None:
        """Raises InvalidInput, MissingFile, CorruptFile when keys, TLS files and address do not go together."""
        self.port = 0
        self._security = security = Security.of(settings)
        self._settings = settings
        self._encoder = encoder
        self._store = store
        self._draining = asyncio.Event()
        self._health = health.HealthServicer()
        self._threads = Threads(
            read=CarryingExecutor(settings.read_connections, "read"),
            write=CarryingExecutor(1, "write"),
            prepare=CarryingExecutor(1, "prepare"),
            encode=CarryingExecutor(1, "encode"),
        )
        self._calls = CallInterceptor(settings.default_deadline_s, settings.ingest_idle_timeout_s)
        self._server = grpc.aio.server(
            interceptors=[
                Entrance(security.keys),
                self._calls,
                *([Revocation(security.keys)] if security.keys is not None else []),
            ],
            options=[
                ("grpc.max_receive_message_length", settings.message_limit_bytes),
                ("grpc.max_send_message_length", -1),
                # Two services on one port would share the calls between them; the second is to fail instead.
                ("grpc.so_reuseport", 0),
                # Devices may keep an idle channel alive through their NATs; their pings are no abuse.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS),
                ("grpc.keepalive_time_ms", 60_000),
            ],
        )

    async def start(self) -> None:
        """Listens; `port` is then the port. Raises StoreUnavailable when the address is taken."""
        catalogue = Catalogue(self._store, self._encoder.description)
        self._create_default()
        threads, server = self._threads, self._server
        retrieval_pb2_grpc.add_RetrievalServicer_to_server(
            Retrieval(catalogue, threads.read, self._settings), server
        )
        ingestion = Ingestion(catalogue, self._encoder, threads, self._settings, self._draining)
        ingestion_pb2_grpc.add_IngestionServicer_to_server(ingestion, server)
        bases = KnowledgeBases(catalogue, threads.read, threads.write, self._settings)
        knowledge_bases_pb2_grpc.add_KnowledgeBasesServicer_to_server(bases, server)
        models = Models(self._encoder.description, self._settings, threads.read)
        models_pb2_grpc.add_ModelsServicer_to_server(models, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self._settings.reflection:
            names = (
                *SERVICES,
                health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
                reflection.SERVICE_NAME,
            )
            reflection.enable_server_reflection(names, server)
        try:
            self.port = self._security.add_port(server, self._settings.listen)
        except RuntimeError as error:
            raise StoreUnavailable(
                f"cannot listen on {self._settings.listen}: the address is taken or not ours"
            ) from error
        await server.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        if self._settings.port_file is not None:
            write_atomically(self._settings.port_file, f"{self.port}\n")
        for base in self._store.knowledge_bases():
            if problem := base.problem or catalogue.mismatch(base):
                logger().error("knowledge_base_refused", knowledge_base=base.name, problem=problem)
        logger().info(
            "serving", listen=self._settings.listen, port=self.port,
            store=str(parse_address(self._settings.store)),  # shown without its password
            keys=self._security.keys is not None, tls=self._security.certificates is not None,
        )  # fmt: skip

    def _create_default(self) -> None:
        name = self._settings.default_knowledge_base
        if name and not self._settings.store_read_only:
            try:
                self._store.knowledge_base(name)
            except KnowledgeBaseNotFound:
                self._store.create(name, "", self._encoder.description.identity)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", *SERVICES):
            await self._health.set(service, status)

    async def stop(self) -> None:
        """NOT_SERVING, no new calls, those under way get their grace, then the store is closed. Idempotent."""
        if self._draining.is_set():
            return
        logger().info("draining", grace_s=self._settings.shutdown_grace_s)
        await self._health.enter_graceful_shutdown()
        self._draining.set()
        stopping = asyncio.create_task(self._server.stop(self._settings.shutdown_grace_s))
        idle = asyncio.create_task(self._calls.wait_until_idle())
        await asyncio.wait({stopping, idle}, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        # Health.Watch streams never end by themselves: without calls of ours there is nothing to wait for but the
        # last answers' way out.
        await self._server.stop(min(_LAST_ANSWERS_S, self._settings.shutdown_grace_s))
        await stopping
        for pool in (self._threads.prepare, self._threads.encode, self._threads.read, self._threads.write):
            await asyncio.get_running_loop().run_in_executor(None, pool.shutdown)
        self._store.close()
        logger().info("stopped")


def write_atomically(path: Path, text: str) -> None:
    """Writes a file that others wait for: it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


async def serve_until_signal(settings: Settings, encoder: Encoder) -> None:
    """Serves until SIGTERM or SIGINT, then stops gracefully."""
    store = await asyncio.to_thread(open_store, settings.store, settings.store_options())
    server = Server(settings, encoder, store)
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop.set)
    try:
        await server.start()
        await told_to_stop.wait()
    finally:
        await server.stop()
