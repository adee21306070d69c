"""`memory-service backup`, `backups` and `restore`: knowledge bases of a running service, saved elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from memory3.errors import Memory3Error
from memory3.printable import counted, printable
from memory_service.cli.columns import show_columns
from memory_service.client.connection import Address, asking
from memory_service.settings import DEFAULT_ADDRESS
from protos.memory.v1 import knowledge_bases_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2_grpc

if TYPE_CHECKING:
    from memory_service.archive import Backup


@contextlib.contextmanager
def _with_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """What shows how far the work is."""
    with Progress(console=Console(stderr=True, highlight=False)) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def backup(
    name: Annotated[str, typer.Argument(metavar="NAME", help="knowledge base; '*' for each one that you may read")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="a separate folder, or s3://bucket/prefix")],
    keep: Annotated[int, typer.Option(min=1, help="complete backups to keep there, the newest ones")] = 1,
    min_age_h: Annotated[float, typer.Option(min=0, help="leave out what has a backup younger than so many hours")] = 0,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Back up a knowledge base as it is now, while it is served; older backups are removed once it is complete.

    With '*' each knowledge base has a folder of its own below TARGET, and one that fails holds up no other. After a
    failure, the same command with --min-age-h backs up those that were not saved.
    """
    from memory_service.archive import Archive
    from memory_service.client.backup import back_up

    def save(one: str, target: str) -> None:
        archive = Archive(target)
        archive.require_of(one)
        newest = archive.backups()[0][-1:]
        if newest and (age_h := newest[0].age_h) < min_age_h:
            typer.echo(f"left out {one}: its backup {newest[0].file} is {age_h:.1f} hours old")
            return
        with _with_bar("memories") as show:
            made = back_up(address, one, archive, show, keep=keep)
        documents, memories = counted(made.documents, "document"), counted(made.memories, "memory")
        without = f", {made.unwritten_documents} of them without memories yet" if made.unwritten_documents else ""
        typer.echo(f"saved {documents}{without}, {memories} of {one} to {target.rstrip('/')}/{made.file}")

    if name != "*":
        save(name, target)
        return
    with asking(knowledge_bases_pb2_grpc.KnowledgeBasesStub, address) as stub:
        found = stub.ListKnowledgeBases(pb.ListKnowledgeBasesRequest(), timeout=30).knowledge_bases
    failed = 0
    for base in found:
        try:
            save(base.name, f"{target.rstrip('/')}/{base.name}")
        except Memory3Error as error:
            failed += 1
            typer.echo(f"{base.name}: {printable(str(error))}", err=True)
    if failed:
        typer.echo(f"{failed} of {counted(len(found), 'knowledge base')} were not saved", err=True)
        raise typer.Exit(1)


def backups(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="folder or s3://bucket/prefix of backups")],
    max_age_h: Annotated[
        float | None, typer.Option(min=0, help="fail if the newest one of a knowledge base is older than so many hours")
    ] = None,
) -> None:
    """List the complete backups of a folder or bucket, oldest first; one whose record is damaged is named.

    Where `backup '*'` saved, those of all knowledge bases.
    """
    from memory_service.archive import Archive

    archive = Archive(target, create=False)
    rows, problems = list[Sequence[str]](), list[str]()
    for one in archive.with_those_below():
        found, damaged = one.backups()
        below = one.location.removeprefix(archive.location).lstrip("/")
        rows += [_row(below, backup) for backup in found]
        problems += map(str, damaged)
        if max_age_h is not None and (not found or found[-1].age_h > max_age_h):
            age = f"the newest is {found[-1].age_h:.1f} hours old" if found else "none is whole"
            problems.append(f"backups at {one.location}: {age}, at most {max_age_h:g} hours are allowed")
    if rows:
        show_columns(("backup", "knowledge base", "documents", "memories", "MB"), rows)
    elif not problems:
        typer.echo(f"there is no complete backup at {target}", err=True)
    for problem in problems:
        typer.echo(printable(problem), err=True)
    if problems or (max_age_h is not None and not rows):
        raise typer.Exit(1)


def _row(below: str, backup: Backup) -> Sequence[str]:
    """below: its folder, seen from the one that is listed."""
    file = f"{below}/{backup.file}" if below else backup.file
    unwritten = f" ({backup.unwritten_documents} unwritten)" if backup.unwritten_documents else ""
    size_mb = f"{backup.bytes / 1e6:.1f}"
    return file, backup.knowledge_base, f"{backup.documents}{unwritten}", str(backup.memories), size_mb


def restore(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="folder or s3://bucket/prefix of a backup")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the knowledge base to create")],
    stamp: Annotated[str, typer.Option("--backup", help="the one whose file begins so; default: the newest")] = "",
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Restore a backup into a new knowledge base, after comparing all checksums."""
    from memory_service.archive import Archive
    from memory_service.client import backup

    with _with_bar("documents") as show:
        made = backup.restore(address, name, Archive(source, create=False), show, stamp=stamp)
    documents, memories = counted(made.documents, "document"), counted(made.memories, "memory")
    typer.echo(f"restored {documents}, {memories} as {name}")
