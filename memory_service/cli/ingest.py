"""`memory-service ingest`: files into a knowledge base, with progress, an estimate of the rest, and a way to go on."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from memory3.errors import InvalidInput, Memory3Error
from memory3.formats import Report, find_sources, has_parts, holds_records, name_of_kind
from memory3.formats.naming import FilesRead, Naming, file_of
from memory3.formats.report import EMPTY
from memory3.printable import Bars, counted, printable
from memory_service.client.connection import Address, asking, plain
from memory_service.client.documents import delete_all, listed
from memory_service.client.ingest import Destination, Ingestion, Upload
from memory_service.client.share import Share
from memory_service.settings import DEFAULT_ADDRESS, DEFAULT_KNOWLEDGE_BASE, Settings, load_settings
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc

if TYPE_CHECKING:
    from memory_service.encoder import Encoder

_WRITING = {"now": pb.MEMORY_WRITING_NOW, "later": pb.MEMORY_WRITING_LATER}
_NOTICED_S = 2.0
"""From which a person wonders why nothing happens."""


def ingest(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="files, folders or patterns such as '**/*.md'")],
    address: Address = DEFAULT_ADDRESS,
    kb: Annotated[str, typer.Option("--kb", "--knowledge-base", help="knowledge base")] = DEFAULT_KNOWLEDGE_BASE,
    create: Annotated[bool, typer.Option(help="create the knowledge base if it is missing")] = True,
    name: Annotated[str, typer.Option("--name", help="name of the one file or folder in keys, not its path")] = "",
    prune: Annotated[bool, typer.Option("--prune", help="delete documents whose files left the folders")] = False,
    memories: Annotated[Literal["now", "later"], typer.Option(help="write memories now, or later")] = "now",
    overlap: Annotated[int, typer.Option(min=0, help="tokens repeated from the preceding reference")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="processes here that write the memories; 0: the service")] = 0,
    share: Annotated[str, typer.Option(metavar="INDEX/COUNT", help="ingest this part: 0/8 is the first of 8")] = "0/1",
    model: Annotated[Path | None, typer.Option(help="with --workers: the service's model")] = None,
    bundle: Annotated[Path | None, typer.Option(help="with --workers: the service's bundle")] = None,
    store: Annotated[str | None, typer.Option(help="with --workers: server to write to")] = None,
) -> None:
    """Ingest documents into a knowledge base. After Ctrl-C, run the same command again to resume.

    Reads text, Markdown, HTML, PDF, Office files, mail, tables, code and more, and reports what it skips. Unchanged
    documents are skipped. The command retries lost connections and an unavailable store.

    With --workers 4, four processes on this machine write the memories, each with the service's model, and send them;
    with --store clickhouse://… they write to the store themselves. Several machines divide the documents: run the same
    command on each, with --share 0/8 to --share 7/8.

    A file's document is named by its absolute path, or with --name wiki by wiki/PATH, which is the same on every
    machine. Records keep the keys that their file gives them; --prune deletes none of those.

    Example: memory-service ingest notes/ --kb notes --name notes --prune
    """
    console = Console(stderr=True, highlight=False)
    given: dict[str, Path | str | None] = {"model": model, "bundle": bundle, "store": store}
    if not workers and (useless := [f"--{name}" for name, value in given.items() if value is not None]):
        raise InvalidInput(f"{', '.join(useless)}: only with --workers, here the service writes with its own")
    if workers and memories == "later":
        raise InvalidInput("--memories later: with --workers, they write the memories now")
    part = Share.parse(share)
    if prune and not part.is_all:
        raise InvalidInput("--prune is for all documents: run it without --share, once all shares are done")
    report, files_read = Report(), FilesRead()
    naming, found = Naming(tuple(files), name), find_sources(files, report)
    if prune and not naming.folders:
        raise InvalidInput("--prune is for folders: name one")
    sources = {key: source for source in found if part.has_some_of(source, key := naming.key(source))}
    # Of a table that shares divide, no share knows which rows are gone.
    whole = {key for key, source in sources.items() if has_parts(source) and (part.is_all or not holds_records(source))}
    to = Destination(address, kb, overlap, _WRITING[memories])
    if to.require(create=create):
        console.print(f"created knowledge base {plain(kb)}")
    shown = _Shown(console, sum(part.expected(source) for source in sources.values()))
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(shown.progress)
            if workers:
                uploads = _with_workers(sources, to, given, part, workers)
            else:
                ingestion = Ingestion(to, on_wait=shown.wait)
                stack.enter_context(_interrupting(ingestion, shown))
                uploads = ingestion.run(Upload.of(one) for one in part.documents(sources))
            shown.all(_noting(_reported(uploads, sources, part, report), whole, files_read))
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
        _prune(to, naming, sources, report)
    if shown.outcomes["failed"]:
        raise typer.Exit(1)


def _reported(uploads: Iterator[Upload], sources: Mapping[str, Path], part: Share, report: Report) -> Iterator[Upload]:
    """The uploads; the report gets what was read and assumed, and tables without rows."""
    seen: set[str] = set()
    readable: set[str] = set()
    for upload in uploads:
        kind, unreadable = name_of_kind(Path(upload.source)), upload.reason == "UNREADABLE"
        seen.add(upload.source)
        if not unreadable:
            report.files[kind] += upload.source not in readable
            readable.add(upload.source)
        report.count(kind, upload.where, upload.source, upload.message if unreadable else "", upload.notes)
        yield upload
    if part.is_all:
        for key in sources.keys() - seen:
            report.skip(key, EMPTY, "a table without rows")


def _noting(uploads: Iterator[Upload], whole: Collection[str], files_read: FilesRead) -> Iterator[Upload]:
    """The uploads; `files_read` gets those of the files, named by their keys, whose parts are all seen here."""
    for upload in uploads:
        if upload.source in whole:
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


def _prune(to: Destination, naming: Naming, there: Collection[str], report: Report) -> None:
    """Delete the documents of the folders whose files, by key, are no longer there, and name them."""
    with asking(ingestion_pb2_grpc.IngestionStub, to.address) as stub:
        stored = [d.document_key for at in naming.folders for d in listed(stub, to.knowledge_base, f"{at}/")]
        gone = naming.gone({key: file_of(key, {}) for key in stored}, there, report)
        delete_all(stub, to.knowledge_base, gone)
    for key in gone:
        typer.echo(f"deleted {printable(key)}")


def _with_workers(
    sources: Mapping[str, Path], to: Destination, given: dict[str, Path | str | None], part: Share, workers: int
) -> Iterator[Upload]:
    """Workers write the memories; Ctrl-C leaves what they have at hand, what is acknowledged stays."""
    from memory_service.client.workers import ingest_with_workers

    settings = load_settings(None, {name: value for name, value in given.items() if value is not None})
    load = functools.partial(_load, settings)
    store = settings if given["store"] else None
    with contextlib.closing(
        ingest_with_workers(sources, to, load, workers=workers, share=part, store=store)
    ) as uploads:
        yield from uploads


def _load(settings: Settings, worker: int, workers: int) -> Encoder:
    """The model of a worker, on a GPU or on a share of the processors of its own."""
    import torch

    from memory_service.write.model_encoder import ModelEncoder

    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    if settings.writing_device in ("auto", "cuda") and torch.cuda.device_count() > 1:
        device = f"cuda:{worker % torch.cuda.device_count()}"
        settings = settings.model_copy(update={"writing_device": device})
    return ModelEncoder.open(settings)


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
        self._waits_for = ""
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
            self._waits_for = ""
            if upload.outcome == "failed":
                line = f"[red]failed[/] {plain(upload.where)}: {upload.reason}: {plain(upload.message)}"
                self.progress.console.print(line, soft_wrap=True)
            self._update()
        if not self.interrupted:
            self.total = self.outcomes.total()  # fewer than were expected if pages have no text
            self._update()

    def wait(self, why: str, pause_s: float) -> None:
        """Says once why nothing goes on, where a person notices it."""
        if pause_s >= _NOTICED_S and why != self._waits_for:
            self._waits_for = why
            self.progress.console.print(f"trying again in {pause_s:.0f} s: {plain(why)}", soft_wrap=True)

    def _update(self) -> None:
        what = f"{self.how_far}, {counted(self.references, 'reference')}"
        self.progress.update(self._task, total=self.total, completed=self.outcomes.total(), description=what)
