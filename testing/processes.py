"""A real `memory-service serve` or `edge-client serve` on a free port, and the memory of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PROGRAMS = Path(sys.executable).parent
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0


class ProcessFailed(Exception):
    """A program did not start, or did not stop as it should; the message names its log."""


@dataclass(frozen=True)
class Process:
    """A running program that is ready. As a context manager it ends the program by SIGTERM."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    signalled: ClassVar[int] = 0
    """An exit code after SIGTERM that counts as success, as 0 does."""

    @property
    def address(self) -> str:
        """Where it listens, as host:port."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """SIGTERM, then waits; raises ProcessFailed if it has to be killed, or fails."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(f"no end within {STOP_TIMEOUT_S:.0f} s of SIGTERM; see {self.log}") from None
        if code not in (0, self.signalled):
            raise ProcessFailed(f"ended with exit code {code} after SIGTERM; see {self.log}")

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if failed or self.process.poll() is not None:
            self.kill()
        else:
            self.stop()


class ServiceProcess(Process):
    """`memory-service serve`."""

    @classmethod
    def start(
        cls,
        folder: Path,
        bundle: Path,
        *,
        model: Path | None = None,
        listen: str = "127.0.0.1:0",
        store: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> ServiceProcess:
        """Serve the store `folder`/store, or the one at the URL `store`; returns when health says SERVING.

        model: the model folder that writes memories, by default the packaged one. Raises ProcessFailed.
        """
        store = store or f"file://{(folder / 'store').resolve()}"
        options = ["--listen", listen, "--store", store, "--bundle", bundle, *(["--model", model] if model else [])]
        given = {**os.environ, **(environment or {})}
        return cls(*_started("memory-service", options, folder / "service", given, serving))


class AppProcess(Process):
    """`edge-client serve`."""

    signalled = -signal.SIGTERM  # uvicorn closes down, then raises the signal again

    @property
    def url(self) -> str:
        """Where the page is; the interface is under /v1."""
        return f"http://{self.address}"

    @property
    def key(self) -> str:
        """The API key that it made, which writing needs."""
        return (self.log.parent / "memory3-edge" / "serve-key").read_text()

    @classmethod
    def start(
        cls, folder: Path, bundle: Path, service: str, *options: str, environment: Mapping[str, str] | None = None
    ) -> AppProcess:
        """Its port, key and log are kept in `folder`; settings of this process's environment do not count.

        Raises ProcessFailed.
        """
        given = {k: v for k, v in os.environ.items() if not k.startswith("EDGE_CLIENT_")}
        given |= {"XDG_STATE_HOME": str(folder), "EDGE_CLIENT_LOCAL": str(folder / "local"), **(environment or {})}
        arguments = ["--bundle", bundle, "--service", service, "--port", "0", *options]
        return cls(*_started("edge-client", arguments, folder / "app", given, lambda address: True))


def _started(
    program: str, options: Sequence[object], files: Path, environment: Mapping[str, str], ready: Callable[[str], bool]
) -> tuple[subprocess.Popen[bytes], int, Path]:
    port_file, log = files.with_name(f"{files.name}-port"), files.with_name(f"{files.name}.log")
    port_file.unlink(missing_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [PROGRAMS / program, "serve", "--port-file", port_file, *map(str, options)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if port_file.is_file() and (text := port_file.read_text().strip()) and ready(f"127.0.0.1:{text}"):
                return process, int(text), log
            time.sleep(0.05)
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.kill()
    code = process.wait()
    raise ProcessFailed(f"{program} serve did not start (exit code {code}); see {log}:\n{log.read_text()[-2000:]}")


def serving(address: str) -> bool:
    """Whether a service's health says SERVING."""
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2.0)
        except grpc.RpcError:
            return False  # not listening yet
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process that is not swapped out. Raises OSError if the process has ended. Linux only."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
