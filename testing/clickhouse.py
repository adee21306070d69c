"""A ClickHouse server for one test or benchmark: `clickhouse_server.py` in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from memory_service.stores.address import parse_address
from testing.programs import ROOT

PASSWORD = "s3cret/%"
OLD_ENGINE = "chdb==0.11.5"
"""ClickHouse 23.6, which lacks what MyScale, a branch of 23.3, lacks."""


@contextlib.contextmanager
def clickhouse_server(folder: Path, port: int = 0) -> Iterator[int]:
    """Serve ClickHouse's HTTP interface on an engine in `folder`; yields the port."""
    port_file = folder / "clickhouse.port"
    port_file.unlink(missing_ok=True)
    with _serving("clickhouse_server.py", folder, port_file, port, {}) as served:
        yield served


@contextlib.contextmanager
def myscale_server(folder: Path) -> Iterator[int]:
    """Serve MyScale's dialect on an engine of 2023 (`myscale_server.py`), which pip installs; yields the port."""
    path = os.pathsep.join([str(old_engine(OLD_ENGINE)), str(ROOT)])
    with _serving("myscale_server.py", folder, folder / "myscale.port", 0, {"PYTHONPATH": path}) as served:
        yield served


def old_engine(package: str) -> Path:
    """A folder with an older engine, such as "chdb==0.11.5", which pip installs there the first time."""
    engine = Path(tempfile.gettempdir()) / f"memory3-{package.replace('==', '-')}"
    if not (engine / "chdb").is_dir():
        made = Path(tempfile.mkdtemp(dir=engine.parent))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(made), package]
        subprocess.run(pip, check=True)
        made.rename(engine)
    return engine


@contextlib.contextmanager
def _serving(script: str, folder: Path, port_file: Path, port: int, environment: dict[str, str]) -> Iterator[int]:
    path = Path(__file__).with_name(script)
    command = [sys.executable, str(path), str(folder / "engine"), str(port_file), PASSWORD, str(port)]
    process = subprocess.Popen(command, env={**os.environ, **environment})
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
