"""Filling a store or a peer in a process of its own, with progress: what it leaves in memory goes with it."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import Progress

from deploy.bench.scenario import ScenarioFailed
from deploy.bench.side_process import go_first_when_memory_ends


def fill_apart(label: str, total: int, fill: Callable[..., None], *arguments: Any) -> None:
    """Runs `fill(*arguments, progress)`, which says how many references it has written; raises ScenarioFailed."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(send, fill, arguments))
    process.start()
    send.close()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"filling {label}", total=total)
        try:
            while isinstance(said := receive.recv(), int):
                progress.advance(task, said)
        except EOFError:
            said = f"its process ended with exit code {process.exitcode}"
        finally:
            process.join()
    if said is not None:
        raise ScenarioFailed(f"{label} could not be filled: {said}")


def _run(send: Any, fill: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    go_first_when_memory_ends()
    try:
        fill(*arguments, send.send)
        send.send(None)
    except BaseException:
        send.send(traceback.format_exc())
