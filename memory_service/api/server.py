"""The service: listening at once, loaded, ready, draining, closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np

from memory_model.errors import Memory3Error
from memory_service.access.catalogue import Catalogue
from memory_service.access.guarded_store import GuardedStore
from memory_service.api.carrying import CarryingExecutor
from memory_service.api.event_loop import keep_what_is_loaded
from memory_service.api.forwarding import Forwarding
from memory_service.api.front import Front
from memory_service.api.ingestion import Ingestion
from memory_service.api.knowledge_bases import KnowledgeBases
from memory_service.api.models import Models
from memory_service.api.operations import Operations
from memory_service.api.processes import private_socket, readers, require_shareable
from memory_service.api.retrieval import Retrieval
from memory_service.errors import KnowledgeBaseNotFound
from memory_service.ops.disk_watermark import DiskWatermark
from memory_service.ops.logs import logger
from memory_service.settings import Settings
from memory_service.stores import Query, Store, open_store
from memory_service.stores.address import parse_address
from memory_service.write.cold_start import LateMemories
from memory_service.write.encoder import Encoder
from memory_service.write.pipeline import Threads
from protos.memory.v1 import (
    ingestion_pb2_grpc,
    knowledge_bases_pb2_grpc,
    models_pb2_grpc,
    operations_pb2_grpc,
    retrieval_pb2_grpc,
)


class Server:
    """One service process, on the event loop that called `start`; the store and the model have threads."""

    def __init__(
        self,
        settings: Settings,
        encoder: Encoder,
        store: Store,
        front: Front | None = None,
        *,
        writer: str = "",
    ) -> None:
        """front: one that listens already; without, `start` listens. Raises what Front raises.

        writer: for one of several processes that only retrieves, where the one is that answers all else.
        """
        self._writer = writer
        self._front = front or Front(settings)
        self._settings = settings
        self._encoder = encoder
        address = parse_address(settings.store)
        disk = DiskWatermark(
            None if address.host else address.path, settings.disk_stop_bytes, settings.disk_resume_bytes
        )
        self._guarded = GuardedStore(store, disk, self._front.quota_of, self._front.tracing)
        self._store = cast(Store, self._guarded)
        self._draining = asyncio.Event()
        self._late: LateMemories | None = None
        self._threads = Threads(
            read=CarryingExecutor(settings.read_connections, "read"),
            write=CarryingExecutor(1, "write"),
            prepare=CarryingExecutor(1, "prepare"),
            encode=CarryingExecutor(1, "encode"),
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._front.port

    @property
    def metrics_port(self) -> int:
        """Where Prometheus asks; 0: nowhere."""
        return self._front.metrics_port

    async def start(self) -> None:
        """Answers calls when it returns. Raises StoreUnavailable when an address is taken."""
        front, threads, settings = self._front, self._threads, self._settings
        if not front.listening:
            await front.listen()
        catalogue = Catalogue(self._store, self._encoder.description)
        self._create_default()
        late = self._late = LateMemories(catalogue, self._encoder, threads, settings, self._draining)
        forwarding = Forwarding(self._writer) if self._writer else None
        retrieval = Retrieval(catalogue, self._encoder, threads.read, settings, late, forwarding)
        retrieval_pb2_grpc.add_RetrievalServicer_to_server(retrieval, front.services)
        if forwarding is not None:
            front.services.add_generic_rpc_handlers((forwarding,))
        else:
            self._add_writing(catalogue, late)
        for base in self._store.knowledge_bases():
            if problem := base.problem or catalogue.mismatch(base):
                logger().error("knowledge_base_refused", knowledge_base=base.name, problem=problem)
        if settings.warm_up:
            await self._warm_up(catalogue)
        if forwarding is None:
            late.start()
        front.open()
        await front.health.watch(self._guarded, catalogue)
        if settings.port_file is not None:
            write_atomically(settings.port_file, f"{self.port}\n")
        logger().info(
            "serving", listen=settings.listen, port=self.port, metrics_port=self.metrics_port,
            store=str(parse_address(settings.store)),  # shown without its password
            keys=front.security.keys is not None, tls=front.security.certificates is not None,
        )  # fmt: skip

    def _add_writing(self, catalogue: Catalogue, late: LateMemories) -> None:
        """What only the process with the model answers."""
        front, threads, settings = self._front, self._threads, self._settings
        ingestion = Ingestion(catalogue, self._encoder, threads, settings, self._draining, late)
        ingestion_pb2_grpc.add_IngestionServicer_to_server(ingestion, front.services)
        bases = KnowledgeBases(catalogue, threads.read, threads.write, settings)
        knowledge_bases_pb2_grpc.add_KnowledgeBasesServicer_to_server(bases, front.services)
        models = Models(self._encoder.description, settings, threads.read)
        models_pb2_grpc.add_ModelsServicer_to_server(models, front.services)
        operations = Operations(catalogue, late, threads.read)
        operations_pb2_grpc.add_OperationsServicer_to_server(operations, front.services)

    def _create_default(self) -> None:
        name = self._settings.default_knowledge_base
        if name and not self._settings.store_read_only:
            try:
                self._store.knowledge_base(name)
            except KnowledgeBaseNotFound:
                self._store.create(name, "", self._encoder.description.identity)

    async def _warm_up(self, catalogue: Catalogue) -> None:
        """The first call is not to pay for what all need: the model's and the indices' first use."""
        run = asyncio.get_running_loop().run_in_executor
        await run(self._threads.encode, self._encoder.encode, ["The first reference."])
        vector = np.zeros((1, self._encoder.description.identity.dimension), np.float32)
        vector[0, 0] = 1.0
        for base in self._store.knowledge_bases():
            if not base.problem and not catalogue.mismatch(base):
                try:
                    await run(self._threads.read, self._store.retrieve, base, Query(vector, 1))
                except Memory3Error as error:
                    logger().error("not_warmed_up", knowledge_base=base.name, problem=str(error))

    async def stop(self) -> None:
        """NOT_SERVING, no new calls, those under way get their grace, then the store is closed. Idempotent."""
        if self._draining.is_set():
            return
        await self._front.drain()
        self._draining.set()
        await self._front.stop()
        if self._late is not None:
            await self._late.stop()
        for pool in (self._threads.prepare, self._threads.encode, self._threads.read, self._threads.write):
            await asyncio.get_running_loop().run_in_executor(None, pool.shutdown)
        self._store.close()
        logger().info("stopped")


def write_atomically(path: Path, text: str) -> None:
    """Writes a file that others wait for: it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


async def serve_until_signal(settings: Settings, load_encoder: Callable[[], Encoder]) -> None:
    """Listens, loads model and store, serves until SIGTERM or SIGINT, then stops gracefully; one of several processes
    where the settings say so.
    """  # noqa: D205
    require_shareable(settings)
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop.set)
    several = contextlib.AsyncExitStack()
    also_listen = several.enter_context(private_socket()) if settings.processes > 1 else ""
    front = Front(settings, also_listen)
    await front.listen()
    logger().info("listening", listen=settings.listen, port=front.port)
    stop = asyncio.create_task(told_to_stop.wait())
    server: Server | None = None
    try:
        loading = asyncio.create_task(asyncio.to_thread(_load, settings, load_encoder))
        await asyncio.wait({loading, stop}, return_when=asyncio.FIRST_COMPLETED)
        (
            encoder,
            store,
        ) = await loading  # a thread cannot be stopped: told to stop, the process ends when it has loaded
        server = Server(settings, encoder, store, front)
        if not told_to_stop.is_set():
            await server.start()
            keep_what_is_loaded()
            if also_listen:
                await several.enter_async_context(
                    readers(settings, encoder.description, front.port, also_listen)
                )
        await stop
    finally:
        await several.aclose()
        stop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (server.stop() if server is not None else front.stop())


def _load(settings: Settings, load_encoder: Callable[[], Encoder]) -> tuple[Encoder, Store]:
    return load_encoder(), open_store(settings.store, settings.store_options())
