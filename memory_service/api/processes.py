"""Several processes on one port: the first one writes and has the model, the others only retrieve.

    the kernel gives each connection to one of them (SO_REUSEPORT)
    first     everything; listens on a private socket too
    others    Retrieval from the store, opened for reading; all else is passed on to the first (`forwarding`)

Python runs one thread at a time, so retrieval grows with processes, not with threads. One that dies is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from memory_model.errors import InvalidInput
from memory_service.api.event_loop import keep_what_is_loaded, run
from memory_service.errors import StoreUnavailable
from memory_service.ops.logs import configure_logs, logger
from memory_service.settings import Settings
from memory_service.stores.address import parse_address
from memory_service.write.encoder import EncoderDescription

_LOOK_S = 0.5


def require_shareable(settings: Settings) -> None:
    """Raises InvalidInput where several processes cannot serve the store or the address."""
    if settings.processes == 1:
        return
    if parse_address(settings.store).engine == "chdb":
        raise InvalidInput(
            f"processes = {settings.processes}: a chdb:// store belongs to one process;"
            " use file:// or a ClickHouse server, or processes = 1"
        )
    if settings.listen.startswith("unix:"):
        raise InvalidInput(
            f"processes = {settings.processes}: only a host:port can be shared, not a unix: socket"
        )
    require_free(settings.listen)


def require_free(listen: str) -> None:
    """Raises StoreUnavailable if somebody listens there already: a shared port would not say so."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise StoreUnavailable(
                f"cannot listen on {listen}: the address is taken or not ours; choose another with --listen"
            ) from error


@contextlib.contextmanager
def private_socket() -> Iterator[str]:
    """The address of a unix socket in a folder that only this user can enter."""
    with tempfile.TemporaryDirectory(prefix="memory-service-") as folder:
        yield f"unix:{Path(folder) / 'writer.sock'}"


@contextlib.asynccontextmanager
async def readers(
    settings: Settings, description: EncoderDescription, port: int, writer: str
) -> AsyncIterator[None]:
    """The other processes, from here to the end of the block. port: that the first one got."""
    host = settings.listen.rpartition(":")[0]
    theirs = settings.model_copy(update=_of_a_reader(f"{host}:{port}"))
    # A fork would share gRPC's threads and the model.
    context = multiprocessing.get_context("spawn")

    def start() -> Any:
        process = context.Process(target=_read, args=(theirs, description, writer, os.getpid()), daemon=False)
        process.start()
        return process

    running = [start() for _ in range(settings.processes - 1)]

    async def look() -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for place, process in enumerate(running):
                if not process.is_alive():
                    logger().error("reader_ended", exit_code=process.exitcode, pid=process.pid)
                    running[place] = start()

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        for process in running:
            process.terminate()
        for process in running:
            await asyncio.to_thread(process.join, settings.shutdown_grace_s + 10)
            if process.is_alive():
                process.kill()


def _of_a_reader(listen: str) -> dict[str, Any]:
    """Settings that only one process can have, or that need the model."""
    return {
        "listen": listen, "port_file": None, "metrics_listen": "", "audit_log": None, "warm_up": False,
        "default_knowledge_base": "",
    }  # fmt: skip


def _read(settings: Settings, description: EncoderDescription, writer: str, parent: int) -> None:
    configure_logs(settings.log_level, settings.log_format)
    run(_serve(settings, description, writer, parent))


async def _serve(settings: Settings, description: EncoderDescription, writer: str, parent: int) -> None:
    from memory_service.api.server import Server
    from memory_service.stores import open_store

    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop.set)
    options = settings.store_options()
    if parse_address(settings.store).engine == "file":
        options = replace(options, read_only=True)
    encoder: Any = Describing(description)
    server = Server(settings, encoder, open_store(settings.store, options), writer=writer)
    try:
        await server.start()
        keep_what_is_loaded()
        while not told_to_stop.is_set() and os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told_to_stop.wait(), _LOOK_S)
    finally:
        await server.stop()


class Describing:
    """Stands for the encoder in a process that has no model."""

    def __init__(self, description: EncoderDescription) -> None:
        self.description = description

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: only the process that writes has the model")
