"""A real `memory-service serve` on a free port, for the demo, the tests of the whole flow and the benchmarks."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PROGRAM = Path(sys.executable).parent / "memory-service"
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0


class ServiceFailed(Exception):
    """The service did not start, or did not stop as it should; the message names its log."""


@dataclass(frozen=True)
class ServiceProcess:
    """A service that was ready when this was made."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    @classmethod
    def start(
        cls, folder: Path, bundle: Path, *, model: Path | None = None, listen: str = "127.0.0.1:0"
    ) -> ServiceProcess:
        """Serve the store `folder`/store; returns when health says SERVING. Raises ServiceFailed.

        model: the model folder that writes memories, by default the packaged one.
        """
        port_file, log = folder / "port", folder / "service.log"
        port_file.unlink(missing_ok=True)
        store = f"chdb://{(folder / 'store').resolve()}"
        command: list[str | Path] = [PROGRAM, "serve", "--listen", listen, "--port-file", port_file]
        command += ["--store", store, "--bundle", bundle]
        command += ["--model", model] if model else []
        with log.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            return cls(process, _wait_until_ready(process, port_file, log), log)
        except BaseException:
            process.kill()
            process.wait()
            raise

    def stop(self) -> None:
        """SIGTERM, then waits; raises ServiceFailed unless the exit code is 0."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServiceFailed(
                f"the service did not stop within {STOP_TIMEOUT_S:.0f} s; see {self.log}"
            ) from None
        if code != 0:
            raise ServiceFailed(f"the service stopped with exit code {code}; see {self.log}")

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port_file: Path, log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServiceFailed(
                f"the service ended with exit code {process.returncode} at its start; see {log}"
            )
        if port_file.is_file() and (port := port_file.read_text().strip()):
            address = f"127.0.0.1:{port}"
            if _serving(address):
                return address
        time.sleep(0.1)
    raise ServiceFailed(f"the service was not ready within {START_TIMEOUT_S:.0f} s; see {log}")


def _serving(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2.0)
        except grpc.RpcError:
            return False  # not listening yet
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
