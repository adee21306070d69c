"""A ClickHouse server for one test or benchmark: `clickhouse_server.py` in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from memory_service.stores.address import parse_address

PASSWORD = "s3cret/%"


@contextlib.contextmanager
def clickhouse_server(folder: Path, port: int = 0) -> Iterator[int]:
    """Serve ClickHouse's HTTP interface on an engine in `folder`; yields the port."""
    port_file = folder / "clickhouse.port"
    port_file.unlink(missing_ok=True)
    script = Path(__file__).with_name("clickhouse_server.py")
    command = [sys.executable, str(script), str(folder / "engine"), str(port_file), PASSWORD, str(port)]
    process = subprocess.Popen(command)
    try:
        yield port_of(process, port_file)
    finally:
        process.terminate()
        process.wait(60)


def port_of(process: subprocess.Popen[Any], port_file: Path, log: Path | None = None) -> int:
    """Wait until a program has written its port to a file; AssertionError if it ends or takes 300 s."""
    deadline = time.monotonic() + 300
    while not port_file.exists():
        assert process.poll() is None, log and log.read_text()
        assert time.monotonic() < deadline, log and log.read_text()
        time.sleep(0.02)
    return int(port_file.read_text())


def stall(url: str, when: str, match: str, seconds: float) -> None:
    """Hold the server's next request whose statement contains `match`, see `clickhouse_server`."""
    query = urlencode({"when": when, "match": match, "seconds": f"{seconds:.2f}"})
    urllib.request.urlopen(f"http://127.0.0.1:{parse_address(url).port}/stall?{query}", timeout=60).read()
