"""A real `edge-client serve` on a free port, for the tests of the app and its benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(sys.executable).parent / "edge-client"
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0


class AppFailed(Exception):
    """The app did not start, or did not stop as it should; the message names its log."""


@dataclass(frozen=True)
class AppProcess:
    """An app that listened when this was made. Ends with the block that it is used in, by SIGTERM."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        """Where the page is; the interface is under /v1."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        """The API key that it made, which writing needs."""
        return (self.log.parent / "memory3-edge" / "serve-key").read_text()

    @classmethod
    def start(
        cls,
        folder: Path,
        bundle: Path,
        service: str,
        *options: str,
        environment: Mapping[str, str] | None = None,
    ) -> AppProcess:
        """Its port, key, log and memories are kept in `folder`; settings of this environment do not count.

        Raises AppFailed.
        """
        port_file, log = folder / "app-port", folder / "app.log"
        port_file.unlink(missing_ok=True)
        command = [str(PROGRAM), "serve", "--bundle", str(bundle), "--service", service, "--port", "0"]
        command += ["--port-file", str(port_file), *options]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("EDGE_CLIENT_")}
        inherited |= {"XDG_STATE_HOME": str(folder), "EDGE_CLIENT_LOCAL": str(folder / "local")}
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**inherited, **(environment or {})}
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (port_file.is_file() and port_file.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise AppFailed(f"edge-client serve did not start; see {log}:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        return cls(process, int(port_file.read_text()), log)

    def stop(self) -> None:
        """SIGTERM, then waits; raises AppFailed if it has to be killed."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AppFailed(f"the app did not stop within {STOP_TIMEOUT_S:.0f} s; see {self.log}") from None

    def __enter__(self) -> AppProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
