"""`memory-service backup` and `memory-service restore`: both ask a running service, both go on when run again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from memory_service.cli.terminal import errors_for_people
from memory_service.settings import DEFAULT_ADDRESS

Address = Annotated[
    str, typer.Option("--address", envvar="MEMORY_SERVICE_ADDRESS", help="host:port of the service")
]


def _with_bar(what: str, run: Callable[[Callable[[int, int], None]], Awaitable[None]]) -> None:
    with errors_for_people(), Progress(console=Console(stderr=True, highlight=False)) as progress:
        task = progress.add_task(what, total=None)
        asyncio.run(run(lambda done, total: progress.update(task, completed=done, total=total)))  # type: ignore[arg-type]


def backup(
    name: Annotated[str, typer.Argument(metavar="NAME", help="knowledge base")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="an empty folder, or s3://bucket/prefix")],
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Save a knowledge base as it is at one moment; run again to go on after an interruption."""
    from memory_service.client.remote import channel_to
    from memory_service.ops.backup import Backup
    from memory_service.ops.backup_shelf import open_shelf

    async def run(show: Callable[[int, int], None]) -> None:
        async with channel_to(address) as channel:
            made = await Backup(channel, address, name, open_shelf(target), show).run()
        typer.echo(
            f"saved {made.document_count} documents, {made.memory_count} memories of {name} to {target}"
        )

    _with_bar("memories", run)


def restore(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="folder or s3://bucket/prefix of a backup")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="of the knowledge base to create")],
    address: Address = DEFAULT_ADDRESS,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with a restoration that was interrupted")
    ] = False,
) -> None:
    """Restore a backup into a new knowledge base; every checksum is compared."""
    from memory_service.client.remote import channel_to
    from memory_service.ops.backup_restore import Restore
    from memory_service.ops.backup_shelf import open_shelf

    async def run(show: Callable[[int, int], None]) -> None:
        async with channel_to(address) as channel:
            shelf = open_shelf(source)
            made = await Restore(channel, address, shelf, name, resume=resume, on_progress=show).run()
        typer.echo(f"restored {made.document_count} documents, {made.memory_count} memories as {name}")

    _with_bar("documents", run)
