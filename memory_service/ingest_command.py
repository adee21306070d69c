"""`memory-service ingest`: files into a knowledge base, with progress, an estimate of the rest, and a way to go on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from memory_model.errors import Memory3Error
from memory_service.ingest_client import Answer, IngestChoices, IngestClient, Summary
from memory_service.settings import DEFAULT_ADDRESS, DEFAULT_KNOWLEDGE_BASE
from memory_service.terminal import errors_for_people, plain
from protos.memory.v1 import ingestion_pb2 as pb

_WRITING = {
    "service": pb.MEMORY_WRITING_UNSPECIFIED,
    "now": pb.MEMORY_WRITING_NOW,
    "later": pb.MEMORY_WRITING_LATER,
}


def ingest(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="files (JSONL, CSV, Parquet, text, Markdown, HTML, PDF), folders or '**/*.md'"
        ),
    ],
    address: Annotated[
        str, typer.Option("--address", envvar="MEMORY_SERVICE_ADDRESS", help="host:port of the service")
    ] = DEFAULT_ADDRESS,
    kb: Annotated[str, typer.Option("--kb", "--knowledge-base", help="where to write")] = DEFAULT_KNOWLEDGE_BASE,
    create: Annotated[bool, typer.Option(help="create the knowledge base if it is missing")] = True,
    memories: Annotated[
        Literal["service", "now", "later"],
        typer.Option(help="write memories before documents are acknowledged, or later; as the service is set"),
    ] = "service",
    overlap: Annotated[
        int, typer.Option(min=0, help="tokens of a reference's end that the next one repeats")
    ] = 0,
    near_duplicates: Annotated[
        float,
        typer.Option(
            "--drop-near-duplicates", min=0, max=1,
            help="leave out documents that share more of their runs of words with an earlier one, such as 0.9; 0: none",
        ),
    ] = 0.0,
    journals: Annotated[Optional[Path], typer.Option(help="folder of the resume journals")] = None,  # noqa: UP045
) -> None:  # fmt: skip
    """Write documents into a knowledge base; run the same command again to go on after Ctrl-C."""
    from memory_service.formats import count_documents, find_sources
    from memory_service.journal import state_folder
    from memory_service.near_duplicates import NearDuplicates

    console = Console(stderr=True, highlight=False)
    with errors_for_people():
        near = NearDuplicates(near_duplicates) if near_duplicates else None
        sources = find_sources(files)
        total = sum(count_documents(source) for source in sources)
        choices = IngestChoices(create, 5, _WRITING[memories], overlap, near)
        shown = Shown(console, total)
        client = IngestClient(
            address, kb, sources, journals or state_folder(), choices, on_answer=shown.answer
        )
        try:
            with shown.progress:
                summary = asyncio.run(_run(client, console))
        except Memory3Error:
            if client.summary.done:
                console.print(
                    f"{client.summary.done} of {total} documents done: run the same command again to go on"
                )
            raise
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(summary.outcomes.items()))
    typer.echo(f"{total} documents: {counts or 'nothing to do'}; {summary.references} references")
    if summary.interrupted:
        console.print(
            f"interrupted: {summary.done} of {total} documents done, run the same command again to go on"
        )
        raise typer.Exit(130)
    if summary.failures:
        raise typer.Exit(1)


class Shown:
    """What a person sees while it goes on: a bar with the time that is left, and every document that failed."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._references = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}"),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=console)
        self._task = self.progress.add_task("documents", total=total, more="")

    def answer(self, answer: Answer) -> None:
        """Shows one answer."""
        self._references += answer.references
        if answer.outcome == "failed":
            where = plain(answer.document.where)
            line = f"[red]failed[/] {where}: {answer.reason}: {plain(answer.message)}"
            self._console.print(line, soft_wrap=True)
        elif answer.outcome == "duplicate":
            self._console.print(
                f"left out {plain(answer.document.where)}: {plain(answer.message)}", soft_wrap=True
            )
        self.progress.update(self._task, advance=1, more=f"{self._references} references")


async def _run(client: IngestClient, console: Console) -> Summary:
    """Runs the client; the first Ctrl-C stops after what is under way, the second at once."""
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(client.run())

    def on_interrupt() -> None:
        if client.summary.interrupted:
            running.cancel()
        else:
            console.print("stopping after what is under way; Ctrl-C again stops at once")
            client.interrupt()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        return await running
    except asyncio.CancelledError:
        return client.summary
