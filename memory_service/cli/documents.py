"""`memory-service documents`: what a knowledge base holds, document by document, and taking some out of it."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer
from rich.console import Console

from memory3.errors import shortened
from memory3.printable import counted, printable
from memory_service.client.connection import Address, asking, plain
from memory_service.client.documents import delete_all, document_pages, keys_called, listed
from memory_service.settings import DEFAULT_ADDRESS
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc

documents_app = typer.Typer(no_args_is_help=True, help="Documents of a knowledge base: list, show, delete.")

BaseName = Annotated[str, typer.Argument(metavar="KB", help="knowledge base")]
Prefix = Annotated[str | None, typer.Option("--prefix", help="all keys with this prefix")]


@documents_app.command("list")
def list_documents(kb: BaseName, prefix: Prefix = None, address: Address = DEFAULT_ADDRESS) -> None:
    """List documents with tabs between key, number of references, content hash, and whether memories are written."""
    with asking(ingestion_pb2_grpc.IngestionStub, address) as stub:
        for document in listed(stub, kb, prefix or ""):
            written = "written" if document.memories_written else "unwritten"
            key = printable(document.document_key).replace("\t", " ").replace("\n", " ")
            typer.echo(f"{key}\t{document.reference_count}\t{document.content_hash.hex()[:12]}\t{written}")


@documents_app.command("show")
def show(
    kb: BaseName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="key of the document")],
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Show title, metadata and reference texts of a document; control characters are shown as symbols."""
    with asking(ingestion_pb2_grpc.IngestionStub, address) as stub:
        for number, found in enumerate(document_pages(stub, kb, key)):
            if number == 0:
                typer.echo(printable("\n".join(_head(found))))
            for reference in found.references:
                typer.echo(
                    f"\n[{reference.chunk_number}] memory {reference.memory_id:016x}\n{printable(reference.text)}"
                )


def _head(found: pb.GetDocumentResponse) -> list[str]:
    lines = [f"key: {found.document_key}", f"title: {found.title}", f"stored_at: {found.stored_at.ToJsonString()}"]
    return [*lines, *(f"metadata {name}: {value}" for name, value in sorted(found.metadata.items()))]


@documents_app.command("delete")
def delete(
    kb: BaseName,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="DOCUMENT…", help="keys of documents, or paths or names of files")
    ] = None,
    prefix: Prefix = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask for confirmation")] = False,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Delete documents with their references and memories; exits with 1 if a given document does not exist.

    A document is named by its key; a file by its path or name, with all its pages and rows; a folder by its path.
    """
    if not names and not prefix:
        raise typer.BadParameter("name the documents by DOCUMENT…, or by --prefix")
    with asking(ingestion_pb2_grpc.IngestionStub, address) as stub:
        found = {name: keys_called(stub, kb, name) for name in names or []}
        matching = [one.document_key for one in listed(stub, kb, prefix)] if prefix else []
        absent = [name for name, keys in found.items() if not keys]
        if absent:
            shown = plain(", ".join(map(shortened, absent)))
            Console(stderr=True, highlight=False).print(f"not there: {shown}", soft_wrap=True)
        chosen = list(dict.fromkeys([*itertools.chain(*found.values()), *matching]))
        if chosen and not yes:
            typer.confirm(f"delete {counted(len(chosen), 'document')} from knowledge base {kb}?", abort=True)
        delete_all(stub, kb, chosen)
    typer.echo(f"deleted {counted(len(chosen), 'document')} from {kb}")
    if absent:
        raise typer.Exit(1)
