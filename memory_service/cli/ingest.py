"""`memory-service ingest`: files into a knowledge base, with progress, an estimate of the rest, and a way to go on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from memory_model.errors import InvalidInput, Memory3Error
from memory_service.cli.terminal import errors_for_people, plain
from memory_service.client.ingest import Answer, IngestChoices, IngestClient, Summary, open_base
from memory_service.client.near_duplicates import NearDuplicates
from memory_service.client.remote import channel_to
from memory_service.client.worker_stages import Destination, ModelOfSettings
from memory_service.settings import DEFAULT_ADDRESS, DEFAULT_KNOWLEDGE_BASE, Settings, load_settings
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
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="who writes memories: the service, or workers of a Ray cluster for it"),
    ] = "local",
    workers: Annotated[int, typer.Option(min=1, help="of --engine ray: each loads the model")] = 2,
    model: Annotated[Optional[Path], typer.Option(help="of --engine ray: the service's model folder")] = None,  # noqa: UP045
    bundle: Annotated[Optional[Path], typer.Option(help="of --engine ray: the service's bundle")] = None,  # noqa: UP045
    journals: Annotated[Optional[Path], typer.Option(help="folder of the resume journals")] = None,  # noqa: UP045
) -> None:  # fmt: skip
    """Write documents into a knowledge base; run the same command again to go on after Ctrl-C."""
    from memory_service.client.formats import count_documents, find_sources
    from memory_service.client.journal import state_folder

    console = Console(stderr=True, highlight=False)
    with errors_for_people():
        near = NearDuplicates(near_duplicates) if near_duplicates else None
        sources = find_sources(files)
        total = sum(count_documents(source) for source in sources)
        shown = Shown(console, total)
        if engine == "ray":
            _require_only_ray_choices(memories, near)
            destination = Destination(address, kb, overlap)
            given = {"model": model, "bundle": bundle}
            settings = load_settings(
                None, {name: value for name, value in given.items() if value is not None}
            )
            summary = _with_ray(sources, destination, settings, workers, shown, create=create)
        else:
            choices = IngestChoices(create, 5, _WRITING[memories], overlap, near)
            summary = _with_service(address, kb, sources, journals or state_folder(), choices, shown)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(summary.outcomes.items()))
    typer.echo(f"{total} documents: {counts or 'nothing to do'}; {summary.references} references")
    if summary.interrupted:
        console.print(
            f"interrupted: {summary.done} of {total} documents done, run the same command again to go on"
        )
        raise typer.Exit(130)
    if summary.failures:
        raise typer.Exit(1)


def _with_service(
    address: str, kb: str, sources: list[Path], journals: Path, choices: IngestChoices, shown: Shown
) -> Summary:
    """The service writes the memories."""
    client = IngestClient(address, kb, sources, journals, choices, on_answer=shown.answer)
    try:
        with shown.progress:
            return asyncio.run(_run(client, shown.console))
    except Memory3Error:
        shown.say_how_far(client.summary)
        raise


def _with_ray(
    sources: list[Path],
    destination: Destination,
    settings: Settings,
    workers: int,
    shown: Shown,
    *,
    create: bool,
) -> Summary:
    """Workers write the memories; Ctrl-C leaves what they have at hand, the service keeps what it acknowledged."""
    from memory_service.client.ray import Workers, ingest_with_ray

    asyncio.run(_open(destination, create=create))
    summary = Summary()
    crew = Workers(workers, gpus=0.0 if settings.writing_device == "cpu" else None)
    rows = ingest_with_ray(sources, destination, ModelOfSettings(settings.of_writing()), crew)
    try:
        with shown.progress, contextlib.closing(rows):
            for row in rows:
                answer = Answer(row.document, row.outcome, row.references, row.reason, row.message)
                summary.add(answer)
                shown.answer(answer)
    except KeyboardInterrupt:
        summary.interrupted = True
    except Memory3Error:
        shown.say_how_far(summary)
        raise
    return summary


async def _open(destination: Destination, *, create: bool) -> None:
    async with channel_to(destination.address) as channel:
        await open_base(channel, destination.address, destination.knowledge_base, create=create)


def _require_only_ray_choices(memories: str, near: NearDuplicates | None) -> None:
    if memories == "later":
        raise InvalidInput("--engine ray writes memories now: --memories later is for --engine local")
    if near is not None:
        raise InvalidInput(
            "--drop-near-duplicates compares each document with all before it: only --engine local can do that"
        )


class Shown:
    """What a person sees while it goes on: a bar with the time that is left, and every document that failed."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self._total = total
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
            self.console.print(line, soft_wrap=True)
        elif answer.outcome == "duplicate":
            self.console.print(
                f"left out {plain(answer.document.where)}: {plain(answer.message)}", soft_wrap=True
            )
        self.progress.update(self._task, advance=1, more=f"{self._references} references")

    def say_how_far(self, summary: Summary) -> None:
        """What an error left done."""
        if summary.done:
            self.console.print(
                f"{summary.done} of {self._total} documents done: run the same command again to go on"
            )


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
