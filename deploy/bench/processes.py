"""Servers and fillers of a scenario in processes of their own: they cost the measured one nothing."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from deploy.bench.scenario import ScenarioFailed

START_TIMEOUT_S = 300.0
"""A peer may read gigabytes before it answers."""
Ready = Callable[[int], None]
_SPAWN = multiprocessing.get_context("spawn")  # a fork would share gRPC's threads and sockets


@contextmanager
def side_process(serve: Callable[..., None], *arguments: Any) -> Iterator[str]:
    """Run `serve(ready, *arguments)`, which gives its port to `ready`; yields 127.0.0.1:port until the block ends.

    Both must be importable by name. Raises OSError if it does not start.
    """
    receive, send = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_serve, args=(serve, send, arguments), daemon=True)
    process.start()
    send.close()
    try:
        try:
            port = receive.recv() if receive.poll(START_TIMEOUT_S) else None
        except EOFError:
            port = None
        if port is None:
            raise OSError(f"{serve.__module__} did not start")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join()


def fill_apart(label: str, total: int, fill: Callable[..., None], *arguments: Any) -> None:
    """Run `fill(*arguments, progress)`, which reports references written to `progress`; raises ScenarioFailed.

    Whatever it leaves in memory goes with its process.
    """
    with ProcessPoolExecutor(1, _SPAWN) as pool:
        if error := pool.submit(_fill, label, total, fill, arguments).exception():
            raise ScenarioFailed(f"{label} could not be filled: {error!r}") from error


def go_first_when_memory_ends() -> None:
    """Let the system end this process first when memory runs out: a peer that takes too much is a result."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _serve(serve: Callable[..., None], send: Any, arguments: tuple[Any, ...]) -> None:
    serve(send.send, *arguments)


def _fill(label: str, total: int, fill: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    go_first_when_memory_ends()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        fill(*arguments, partial(progress.advance, progress.add_task(f"filling {label}", total=total)))
