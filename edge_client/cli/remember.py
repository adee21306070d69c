"""`edge-client remember`, `remembered`, `correct` and `forget`: local files as memories, which stay on this device."""

from __future__ import annotations

import glob
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from edge_client.cli.options import NOTHING, PARTIAL, err, out, say, with_options
from edge_client.decoder.providers import execution_providers
from edge_client.decoder.threads import physical_cores
from edge_client.errors import StorageError
from edge_client.local.folder import DEFAULT_NAME, DocumentOutcome, LocalKnowledgeBases, to_write_anew, write_anew
from edge_client.local.folder import correct as correct_memory
from edge_client.local.folder import forget as forget_document
from edge_client.local.folder import remove as remove_file
from edge_client.local.knowledge_base import EmptyKnowledgeBase, LocalKnowledgeBase, read_head
from edge_client.local.store import LocalStore, check_name, size_of
from edge_client.local.sync import FileSync
from edge_client.local.writer import MemoryWriter
from edge_client.settings import EdgeSettings
from memory3.errors import InvalidInput, MissingFile
from memory3.files.bundle import Bundle, Manifest
from memory3.formats import Report, count_documents
from memory3.formats.naming import Naming, below
from memory3.printable import counted, printable
from memory3.text.references import title_line

EVERY_S, AGAIN_S = 1.0, 30.0
"""Seconds between two checks of the watched folders, and to the next one after an error of the disk."""
POLITENESS = 10
"""How far `remember --watch`, which runs for days on every core, steps back behind other programs."""
NameOption = Annotated[str, typer.Option("--kb", "--knowledge-base", help="Local knowledge base.")]


@with_options("bundle", "local")
def remember(
    given: dict[str, Any],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE…", help="Files (text, PDF, Office, mail, tables, code and more), folders or '**/*.md'."
        ),
    ] = None,
    kb: NameOption = DEFAULT_NAME,
    name: Annotated[
        str, typer.Option("--name", help="Name of the one file or folder in keys, instead of its path.")
    ] = "",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep documents whose files are no longer in the folders.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on and follow changes until Ctrl-C.")] = False,
    anew: Annotated[
        bool, typer.Option("--anew", help="Rewrite a knowledge base of another bundle from its stored texts.")
    ] = False,
) -> None:
    """Turn files into memories on this device.

    Nothing is sent to a service, and all later answers read them. Run the same command again after Ctrl-C or when files
    have changed: it skips unchanged files, and drops what is no longer in a folder that you name. A file's document is
    named by its absolute path.
    """
    if anew == bool(files):
        raise InvalidInput("name the files to remember, or give --anew alone")
    settings = EdgeSettings(**given)
    bundle = Bundle.open(settings.bundle)
    if watch:
        with suppress(OSError, AttributeError):
            os.nice(POLITENESS)
    writer = MemoryWriter(bundle, execution_providers(settings.provider), threads=physical_cores())
    if anew:
        with closing(LocalKnowledgeBase.any(to_write_anew(settings.store, kb, bundle.manifest))) as base:
            total = len(base.files())
        _show(write_anew(settings.store, kb, writer), total)
        return
    check_name(kb)  # before anything is loaded
    bases = LocalKnowledgeBases(settings.store, bundle, only=kb)
    try:
        _require_paths(files or [], bases, kb)

        def opened(make: bool) -> LocalKnowledgeBase:
            return bases.base(kb, writer.embedder.dim if make else 0)

        folders = FileSync(opened, writer, Naming(tuple(files or ()), name), keep)
        changed = folders.look()
        try:
            total = sum(count_documents(source) for source in changed)
            _show(folders.bring(changed), total, folders.report)
        except typer.Exit:
            if not watch:
                raise
        if watch:
            say("watching; Ctrl-C ends")
            with suppress(KeyboardInterrupt):
                _watch(folders)
    finally:
        bases.close()


def _watch(folders: FileSync) -> None:
    failed = ""
    while True:
        time.sleep(AGAIN_S if failed else EVERY_S)
        try:
            _follow(folders)
            failed = ""
        except StorageError as error:
            if str(error) != failed:
                say(f"{error.reason}: {error}; tried again every {AGAIN_S:g} s", "red")
            failed = str(error)


def _follow(folders: FileSync) -> None:
    for one in folders.bring(folders.look()):
        if one.outcome == "failed":
            say(f"failed {one.where}: {one.reason}: {one.message}", "red")
        elif one.outcome != "writing":
            say(f"{one.outcome} {one.key}: {counted(one.references, 'memory')}")


def _require_paths(files: list[Path], bases: LocalKnowledgeBases, kb: str) -> None:
    """Raise MissingFile for a missing path, with what is remembered of it."""
    for path in files:
        if path.exists() or glob.has_magic(str(path)):
            continue
        kept = below({one.key: one.file for one in bases.documents().get(kb, [])}, str(path))
        advice = f": {counted(len(kept), 'document')} of it can be dropped with `edge-client forget {path}`"
        raise MissingFile(f"{path} does not exist{advice if kept else ''}")


@with_options("local")
def remembered(
    given: dict[str, Any],
    kb: Annotated[str | None, typer.Option("--kb", "--knowledge-base", help="List the documents of this one.")] = None,
) -> None:
    """List this device's knowledge bases with their models, or the documents of one."""
    store = EdgeSettings(**given).store
    if kb is None:
        listed = False
        for path in store.files():
            try:
                base = LocalKnowledgeBase.any(path)
            except EmptyKnowledgeBase as error:
                say(str(error))
                continue
            with closing(base):
                documents, references = len(base.files()), len(base)
                model = store.model_of(path, base.head)
            if not (documents or references):  # all were forgotten
                continue
            listed = True
            size = f"{size_of(path) / 1e6:.1f} MB"
            print(
                f"{path.stem}: {counted(documents, 'document')}, {counted(references, 'memory')}, {size}, model {model}"
            )
        if not listed:
            say(NOTHING.format("`edge-client remember FILE`"))
        return
    paths = _named(store, kb)
    for path in paths:
        with closing(LocalKnowledgeBase.any(path)) as base:
            documents_of = base.documents()
            if len(paths) > 1:
                print(f"model {store.model_of(path, base.head)}:")
        print("memories  document")
        for document in documents_of:
            title = f"  {document.title}" if document.title else ""
            partial = PARTIAL if document.partial else ""
            print(printable(f"{document.references:8}  {document.key}{title}{partial}"))


def _named(store: LocalStore, kb: str) -> list[Path]:
    """The knowledge bases of this name, of all models; raises MissingFile where there is none."""
    if not (paths := store.named(kb)):
        raise store.missing(kb)
    return paths


@with_options("local")
def forget(
    given: dict[str, Any],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="DOCUMENT…", help="Names, titles or paths of documents, as of `ask`; or folders."),
    ] = None,
    kb: NameOption = DEFAULT_NAME,
    everything: Annotated[bool, typer.Option("--all", help="Remove the whole knowledge base.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --all.")] = False,
) -> None:
    """Remove documents, or a whole knowledge base, from this device, whichever models have written them."""
    store = EdgeSettings(**given).store
    if everything == bool(keys):
        raise InvalidInput("name the documents to forget, or give --all alone")
    paths = _named(store, kb)
    if everything:
        for path in paths:
            read_head(path)  # no other file is removed
        if not yes:
            typer.confirm(f"forget {kb} with all its documents?", abort=True)
        for path in paths:
            remove_file(path)
        print(f"forgot {kb} with all its documents")
        return
    unknown = []
    for name in keys or ():
        if not (forgotten := forget_document(paths, name, folders=True)):
            unknown.append(name)
        for key in forgotten:
            print(printable(f"forgot {key}"))
    if unknown:
        raise MissingFile(f"{kb} has no document {', '.join(unknown)}: `edge-client remembered --kb {kb}` lists them")


@with_options("bundle", "local")
def correct(
    given: dict[str, Any],
    document: Annotated[str, typer.Argument(help="Name, title or path of a document, as of `ask`.")],
    number: Annotated[int | None, typer.Argument(min=0, help="Number of one of its memories.")] = None,
    text: Annotated[
        str | None, typer.Argument(help="Its new text, without the document's title; - reads it from standard input.")
    ] = None,
    kb: NameOption = DEFAULT_NAME,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the memory; the document's others stay.")] = False,
) -> None:
    """Replace the text of one memory on this device, or list the memories of a document with their numbers.

    A correction holds until the document is remembered with another text.
    """
    lists = number is None and not remove
    if not lists and (number is None or remove == (text is not None)):
        raise InvalidInput("give the number of a memory and its new text, or its number and --remove")
    text = sys.stdin.read() if text == "-" else text
    settings = EdgeSettings(**given)
    bundle = Bundle(settings.bundle, Manifest.read(settings.bundle))  # checked where it is read
    bases = LocalKnowledgeBases(settings.store, bundle, only=kb)
    try:
        base = bases.base(kb)
        unknown = MissingFile(f"{kb} has no document {document}: `edge-client remembered --kb {kb}` lists them")
        if number is None:  # it lists them
            if not (keys := base.keys_of(document)):
                raise unknown
            for hit in base.memories_of(keys):
                shown = (hit.text or "").removeprefix(title_line(hit.title))
                print(printable(f"{hit.document_key} {hit.chunk_number}: {' '.join(shown.split())}"))
            return
        if (one := base.document(document)) is None:
            raise unknown
        if remove:
            found = base.correct(one, number)
        else:
            checked = Bundle.open(settings.bundle)
            writer = MemoryWriter(checked, execution_providers(settings.provider), threads=physical_cores())
            found = correct_memory(base, writer, one, number, text or "")
        if not found:
            raise MissingFile(
                f"{one.key} has no memory {number}: `edge-client correct {document} --kb {kb}` lists them"
            )
        print(printable(f"{'removed' if remove else 'corrected'} {one.key} {number}"))
    finally:
        bases.close()


def _show(outcomes: Iterable[DocumentOutcome], total: int, report: Report | None = None) -> None:
    """Show progress, failures, a summary and the report; exit code 1 if a document failed."""
    counts: Counter[str] = Counter()
    references, dropped = 0, list[str]()
    try:
        with Progress(BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn(), console=err) as progress:
            task = progress.add_task(counted(total, "document"), total=total)
            for one in outcomes:
                if one.outcome == "failed":
                    say(f"failed {one.where}: {one.reason}: {one.message}", "red")
                if one.outcome == "dropped":
                    dropped.append(one.key)
                if one.outcome != "writing":
                    counts[one.outcome] += 1
                    references += one.references
                written = references + (one.done if one.outcome == "writing" else 0)
                read = counts.total() - counts["dropped"]
                what = f"{read:,} of {counted(total, 'document')}, {counted(written, 'memory')}"
                progress.update(task, completed=read, description=what)
            read = counts.total() - counts["dropped"]  # fewer than were expected if pages have no text
            what = f"{read:,} of {counted(read, 'document')}, {counted(references, 'memory')}"
            progress.update(task, total=read, completed=read, description=what)
    except KeyboardInterrupt:
        say("interrupted; what was written is kept, run the same command again to go on")
        raise
    for key in dropped:
        say(f"dropped {key}: it is no longer there")
    summary = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items())) or "nothing to do"
    out.print(f"{counted(counts.total(), 'document')}: {summary}; {counted(references, 'memory')}", markup=False)
    for line in report.lines(unreadable=False) if report is not None else ():
        say(line)
    if counts["failed"]:
        raise typer.Exit(1)
