"""`memory-service backup` and `memory-service restore`: both ask a running service."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from memory_service.cli.terminal import Address, errors_for_people
from memory_service.settings import DEFAULT_ADDRESS


@contextlib.contextmanager
def _with_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """What shows how far the work is."""
    with errors_for_people(), Progress(console=Console(stderr=True, highlight=False)) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def backup(
    name: Annotated[str, typer.Argument(metavar="NAME", help="knowledge base")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="a folder of its own, or s3://bucket/prefix")],
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Save a knowledge base while it is served; an older backup there is replaced once this one is whole."""
    from memory_service.ops.backup import Archive, back_up

    with _with_bar("memories") as show:
        made = back_up(address, name, Archive(target), show)
    typer.echo(f"saved {made.document_count} documents, {made.memory_count} memories of {name} to {target}")


def restore(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="folder or s3://bucket/prefix of a backup")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="of the knowledge base to create")],
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Restore a backup into a new knowledge base; every checksum is compared."""
    from memory_service.ops import backup

    with _with_bar("documents") as show:
        made = backup.restore(address, name, backup.Archive(source), show)
    typer.echo(f"restored {made.document_count} documents, {made.memory_count} memories as {name}")
