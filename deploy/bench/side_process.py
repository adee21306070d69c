"""A helper of a scenario in a process of its own, so that it costs the measured one nothing."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 300.0
"""A peer may read gigabytes before it answers."""
Ready = Callable[[int], None]


@contextmanager
def side_process(serve: Callable[..., None], *arguments: Any) -> Iterator[str]:
    """Run `serve(ready, *arguments)`, which tells its port to `ready`; gives 127.0.0.1:port until the block ends.

    Both must be importable by name. Raises OSError if it does not start.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share gRPC's threads and sockets
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(serve, send, arguments), daemon=True)
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


def go_first_when_memory_ends() -> None:
    """Of all processes the system is to end this one: a peer that takes too much is a result, too."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _run(serve: Callable[..., None], send: Any, arguments: tuple[Any, ...]) -> None:
    serve(send.send, *arguments)
