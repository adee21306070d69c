"""`memory-service ingest`: files into a knowledge base, with progress, an estimate of the rest, and a way to go on."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal, Optional

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from memory3.errors import InvalidInput, Memory3Error
from memory3.formats import Report, count_documents, find_sources, has_parts, name_of_kind, read_documents
from memory3.formats.naming import FilesRead, Naming, file_of
from memory3.printable import Bars, counted, printable
from memory_service.client.connection import Address, asking, plain
from memory_service.client.ingest import Destination, Ingestion, Upload, delete_all, listed
from memory_service.settings import DEFAULT_ADDRESS, DEFAULT_KNOWLEDGE_BASE, load_settings
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc

_WRITING = {"now": pb.MEMORY_WRITING_NOW, "later": pb.MEMORY_WRITING_LATER}


def ingest(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="files, folders or patterns such as '**/*.md'")],
    address: Address = DEFAULT_ADDRESS,
    kb: Annotated[str, typer.Option("--kb", "--knowledge-base", help="knowledge base")] = DEFAULT_KNOWLEDGE_BASE,
    create: Annotated[bool, typer.Option(help="create the knowledge base if it is missing")] = True,
    name: Annotated[str, typer.Option("--name", help="name of the one file or folder in keys, not its path")] = "",
    prune: Annotated[bool, typer.Option("--prune", help="delete documents whose files left the folders")] = False,
    memories: Annotated[Literal["now", "later"], typer.Option(help="write memories now, or later")] = "now",
    overlap: Annotated[int, typer.Option(min=0, help="tokens repeated from the preceding reference")] = 0,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="who writes: the service, or Ray")] = "local",
    workers: Annotated[int, typer.Option(min=1, help="with --engine ray: number of workers")] = 2,
    model: Annotated[Optional[Path], typer.Option(help="with --engine ray: the service's model")] = None,  # noqa: UP045
    bundle: Annotated[Optional[Path], typer.Option(help="with --engine ray: the service's bundle")] = None,  # noqa: UP045
    store: Annotated[Optional[str], typer.Option(help="with --engine ray: store to write to")] = None,  # noqa: UP045
) -> None:
    """Ingest documents into a knowledge base. After Ctrl-C, run the same command again to resume.

    Reads text, Markdown, HTML, PDF, Office files, mail, tables, code and more, and reports what it skips. Unchanged
    documents are skipped. The command retries lost connections and an unavailable store. With --store clickhouse://…,
    Ray writes to a server without the service.

    A file's document is named by its absolute path, or with --name wiki by wiki/PATH, which is the same on every
    machine. Records keep the keys that their file gives them; --prune deletes none of those.

    Example: memory-service ingest notes/ --kb notes --name notes --prune
    """
    console = Console(stderr=True, highlight=False)
    given: dict[str, Path | str | None] = {"model": model, "bundle": bundle, "store": store}
    if engine == "local" and (useless := [f"--{name}" for name, value in given.items() if value is not None]):
        raise InvalidInput(f"{', '.join(useless)}: only for --engine ray, here the service writes with its own")
    if engine == "ray" and memories == "later":
        raise InvalidInput("--memories later is for --engine local")
    report, files_read = Report(), FilesRead()
    naming, sources = Naming(tuple(files), name), find_sources(files, report)
    if prune and not naming.folders:
        raise InvalidInput("--prune is for folders: name one")
    in_parts = {naming.key(source) for source in sources if has_parts(source)}
    to = Destination(address, kb, overlap, _WRITING[memories])
    if to.require(create=create):
        console.print(f"created knowledge base {plain(kb)}")
    shown = _Shown(console, sum(count_documents(source) for source in sources))
    try:
        if engine == "local":
            ingestion = Ingestion(to)
            with shown.progress, _interrupting(ingestion, shown):
                each = (read_documents(source, Path(naming.key(source)), report) for source in sources)
                uploads = ingestion.run(Upload.of(one) for documents in each for one in documents)
                shown.all(_noting(uploads, in_parts, files_read))
        else:
            with shown.progress:
                uploads = _reported(_with_ray(sources, naming, to, given, workers), report)
                shown.all(_noting(uploads, in_parts, files_read))
    except KeyboardInterrupt:
        shown.interrupted = True
    except Memory3Error:
        console.print(f"{shown.how_far}, run the same command again to go on")
        raise
    summary = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(shown.outcomes.items())) or "nothing to do"
    typer.echo(f"{counted(shown.total, 'document')}: {summary}; {counted(shown.references, 'reference')}")
    for line in report.lines(unreadable=False):
        console.print(plain(line), soft_wrap=True)
    if shown.interrupted:
        console.print(f"interrupted: {shown.how_far}, run the same command again to go on")
        raise typer.Exit(130)
    _delete_left_over(to, files_read)
    if prune:
        _prune(to, naming, sources)
    if shown.outcomes["failed"]:
        raise typer.Exit(1)


def _reported(uploads: Iterator[Upload], report: Report) -> Iterator[Upload]:
    """The uploads; the report gets what workers read and assumed."""
    files: set[str] = set()
    for upload in uploads:
        kind, unreadable = name_of_kind(Path(upload.source)), upload.reason == "UNREADABLE"
        if not unreadable:
            report.files[kind] += upload.source not in files
            files.add(upload.source)
        report.count(kind, upload.where, upload.source, upload.message if unreadable else "", upload.notes)
        yield upload


def _noting(uploads: Iterator[Upload], in_parts: Collection[str], files_read: FilesRead) -> Iterator[Upload]:
    """The uploads; `files_read` gets those of the files that have parts, named by their keys."""
    for upload in uploads:
        if upload.source in in_parts:
            files_read.add(upload.source, upload.key, readable=upload.reason != "UNREADABLE")
        yield upload


def _delete_left_over(to: Destination, files_read: FilesRead) -> None:
    """Delete the pages and rows that files no longer have, and name them."""
    if not files_read.whole:
        return
    with asking(ingestion_pb2_grpc.IngestionStub, to.address) as stub:
        stored = [d.document_key for file in files_read.whole for d in listed(stub, to.knowledge_base, file)]
        left_over = files_read.left_over({key: file_of(key, {}) for key in stored})
        delete_all(stub, to.knowledge_base, left_over)
    for key in left_over:
        typer.echo(f"deleted {printable(key)}: its file no longer has it")


def _prune(to: Destination, naming: Naming, sources: list[Path]) -> None:
    """Delete the documents of the folders whose files are no longer there, and name them."""
    there = {naming.key(source) for source in sources}
    with asking(ingestion_pb2_grpc.IngestionStub, to.address) as stub:
        stored = [d.document_key for at in naming.folders for d in listed(stub, to.knowledge_base, f"{at}/")]
        gone = naming.gone({key: file_of(key, {}) for key in stored}, there)
        delete_all(stub, to.knowledge_base, gone)
    for key in gone:
        typer.echo(f"deleted {printable(key)}")


def _with_ray(
    sources: list[Path], naming: Naming, to: Destination, given: dict[str, Path | str | None], workers: int
) -> Iterator[Upload]:
    """Workers write the memories; Ctrl-C leaves what they have at hand, what is acknowledged stays."""
    from memory_service.client.ray import ingest_with_ray
    from memory_service.write.model_encoder import ModelEncoder

    settings = load_settings(None, {name: value for name, value in given.items() if value is not None})
    # The workers run in another folder.
    settings = settings.model_copy(update={name: one.resolve() for name, one in settings if isinstance(one, Path)})
    with contextlib.closing(
        ingest_with_ray(
            {naming.key(source): source for source in sources},
            to,
            functools.partial(ModelEncoder.open, settings),
            workers=workers,
            gpus=0.0 if settings.writing_device == "cpu" else None,
            store=settings if given["store"] else None,
        )
    ) as uploads:
        yield from uploads


@contextlib.contextmanager
def _interrupting(ingestion: Ingestion, shown: _Shown) -> Iterator[None]:
    """The first Ctrl-C stops after what is under way, the second at once."""

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if shown.interrupted:
            raise KeyboardInterrupt
        shown.interrupted = True
        shown.progress.console.print("stopping after what is under way; Ctrl-C again stops at once")
        ingestion.interrupt()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Shown:
    """Counts, and what a person sees meanwhile: a bar with the time that is left, and every document that failed."""

    def __init__(self, console: Console, total: int) -> None:
        self.total = total
        self.references = 0
        self.outcomes: Counter[str] = Counter()
        self.interrupted = False
        columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.progress = Bars(*columns, console=console)
        self._task = self.progress.add_task(self.how_far, total=total)

    @property
    def how_far(self) -> str:
        """How many documents have their outcome."""
        return f"{self.outcomes.total():,} of {counted(self.total, 'document')} done"

    def all(self, uploads: Iterator[Upload]) -> None:
        """Shows every upload as it comes."""
        for upload in uploads:
            self.outcomes[upload.outcome] += 1
            self.references += upload.references
            if upload.outcome == "failed":
                line = f"[red]failed[/] {plain(upload.where)}: {upload.reason}: {plain(upload.message)}"
                self.progress.console.print(line, soft_wrap=True)
            self._update()
        if not self.interrupted:
            self.total = self.outcomes.total()  # fewer than were expected if pages have no text
            self._update()

    def _update(self) -> None:
        what = f"{self.how_far}, {counted(self.references, 'reference')}"
        self.progress.update(self._task, total=self.total, completed=self.outcomes.total(), description=what)
