"""Starting the service as a real process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from memory_service.api.server import run, serve_until_signal
from memory_service.settings import Settings
from memory_service.telemetry.logs import configure_logs
from testing.clickhouse import port_of
from testing.encoders import SlowEncoder
from testing.programs import ROOT
from tests.memory_service.running import Client


@dataclass
class Service:
    """A running process and the address it serves."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path


@contextlib.contextmanager
def service(
    folder: Path,
    *,
    seconds_per_reference: float = 0.0,
    bundle: Path | None = None,
    engine: str = "file",
    store: str = "",
    **environment: str,
) -> Iterator[Service]:
    """The service on a store in `folder`, or at the address `store`; killed at the end if it still runs.

    bundle: what it offers to devices.

    environment: settings as MEMORY_SERVICE_….
    """
    port_file, log = folder / "port", folder / "log"
    port_file.unlink(missing_ok=True)
    with log.open("ab") as stream:
        command = [
            *(sys.executable, "-m", __name__),
            store or f"{engine}://{folder / 'store'}",
            str(port_file),
            str(seconds_per_reference),
            *([str(bundle)] if bundle else []),
        ]
        process = subprocess.Popen(command, stderr=stream, stdout=stream, cwd=ROOT, env={**os.environ, **environment})
    try:
        yield Service(process, f"127.0.0.1:{port_of(process, port_file, log)}", log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)


@contextlib.contextmanager
def client_of(running: Service) -> Iterator[Client]:
    """Stubs for the process."""
    with grpc.insecure_channel(running.address) as channel:
        yield Client(channel)


if __name__ == "__main__":  # the service with the tests' encoder: STORE PORT_FILE SECONDS_PER_REFERENCE [BUNDLE]
    place, file, seconds, *offered = sys.argv[1:]
    configure_logs("info")
    settings = Settings(
        listen=os.environ.get("MEMORY_SERVICE_LISTEN", "127.0.0.1:0"),
        store=place,
        port_file=Path(file),
        ingest_batch_references=8,
        shutdown_grace_s=10.0,
        bundle=Path(offered[0]) if offered else None,
    )
    run(serve_until_signal(settings, lambda: SlowEncoder(float(seconds))))
