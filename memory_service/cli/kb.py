"""`memory-service kb`: knowledge bases of a running service."""

from __future__ import annotations

from typing import Annotated

import typer

from memory3.printable import counted, printable
from memory_service.cli.columns import show_columns
from memory_service.client import bases
from memory_service.client.connection import Address, asking
from memory_service.settings import DEFAULT_ADDRESS
from protos.memory.v1 import knowledge_bases_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2_grpc

kb_app = typer.Typer(no_args_is_help=True, help="Knowledge bases: create, list, show, usage, cool, delete.")
BaseName = Annotated[str, typer.Argument(metavar="NAME", help="name of the knowledge base")]

_SHOWN = ("name", "description", "model_id", "codec_id", "memory_format_id", "embedder_id", "dimension")
_COUNTED = ("document_count", "reference_count", "payload_bytes", "text_bytes", "stored_bytes")
_TEXT, _WEIGHTS = pb.KNOWLEDGE_FORM_TEXT, pb.KNOWLEDGE_FORM_WEIGHTS
_COOLING_S = 24 * 3600


def _state(base: pb.KnowledgeBase) -> str:
    return pb.KnowledgeBaseState.Name(base.state).removeprefix("KNOWLEDGE_BASE_STATE_").lower()


@kb_app.command("create")
def create(
    name: BaseName,
    description: Annotated[str, typer.Option(help="a note for people")] = "",
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Create an empty knowledge base for the service's model."""
    with asking(knowledge_bases_pb2_grpc.KnowledgeBasesStub, address) as stub:
        bases.create(stub, name, description)
    typer.echo(f"created {name}")


@kb_app.command("list")
def show_all(address: Address = DEFAULT_ADDRESS) -> None:
    """List all knowledge bases."""
    with asking(knowledge_bases_pb2_grpc.KnowledgeBasesStub, address) as stub:
        response = stub.ListKnowledgeBases(pb.ListKnowledgeBasesRequest(), timeout=30)
    rows = []
    for base in response.knowledge_bases:
        created = f"{base.created_at.ToDatetime():%Y-%m-%d %H:%M}"
        rows.append((base.name, _state(base), base.model_id[:12], created, base.description))
    show_columns(("name", "state", "model", "created (UTC)", "description"), rows)


@kb_app.command("show")
def show(name: BaseName, address: Address = DEFAULT_ADDRESS) -> None:
    """Show ids, state and counts of a knowledge base."""
    with asking(knowledge_bases_pb2_grpc.KnowledgeBasesStub, address) as stub:
        base = stub.GetKnowledgeBase(pb.GetKnowledgeBaseRequest(name=name), timeout=30).knowledge_base
        lines = [f"{field}: {getattr(base, field)}" for field in _SHOWN]
        lines += [f"created_at: {base.created_at.ToJsonString()}", f"state: {_state(base)}"]
        lines += [f"problem: {base.problem}"] if base.problem else []
        if base.state not in (pb.KNOWLEDGE_BASE_STATE_DAMAGED, pb.KNOWLEDGE_BASE_STATE_UNAVAILABLE):
            counts = stub.GetStatistics(pb.GetStatisticsRequest(name=name), timeout=60)
            lines += [f"{field}: {getattr(counts, field)}" for field in _COUNTED]
            lines += [f"without_memories_yet: {counts.unwritten_document_count}"]
    typer.echo(printable("\n".join(lines)))


@kb_app.command("usage")
def usage(name: BaseName, address: Address = DEFAULT_ADDRESS) -> None:
    """Show how often references were read: cold ones are text, warm ones memories, hot ones worth training on."""
    with asking(knowledge_bases_pb2_grpc.KnowledgeBasesStub, address) as stub:
        found = stub.GetUsage(pb.GetUsageRequest(name=name), timeout=120)
    rows = []
    for title, groups in (
        ("cold: text", [one for one in found.groups if not one.memories_written]),
        ("warm: memory", [one for one in found.groups if one.memories_written and one.cheapest != _WEIGHTS]),
        ("hot: memory", [one for one in found.groups if one.memories_written and one.cheapest == _WEIGHTS]),
        ("of these, never read", [one for one in found.groups if one.memories_written and one.cheapest == _TEXT]),
    ):
        counts = ("reference_count", "read_count", "payload_bytes", "text_bytes")
        rows.append((title, *(f"{sum(getattr(one, count) for one in groups):,}" for count in counts)))
    show_columns(("", "references", "reads", "memory bytes", "text bytes"), rows)
    typer.echo(
        f"A memory is the cheapest form from {found.memory_from_reads:.3g} to {found.weights_from_reads:,.0f} reads"
        " (appendix A of the paper)."
    )
    for one in found.most_read:
        typer.echo(f"{one.read_count:>12,}  {printable(one.document_key)} #{one.chunk_number}")


@kb_app.command("cool")
def cool(
    name: BaseName,
    keep: Annotated[float, typer.Option(min=0, max=1, help="share of the references that keep their memories")] = 1.0,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Drop the memories of documents that nobody read, or all but the most read; a read writes them again."""
    with asking(knowledge_bases_pb2_grpc.KnowledgeBasesStub, address) as stub:
        found = stub.CoolKnowledgeBase(pb.CoolKnowledgeBaseRequest(name=name, keep_share=keep), timeout=_COOLING_S)
    typer.echo(
        f"dropped the memories of {counted(found.document_count, 'document')}:"
        f" {counted(found.reference_count, 'reference')}, {found.payload_bytes:,} bytes"
    )


@kb_app.command("delete")
def delete(
    name: BaseName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask for confirmation")] = False,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Delete a knowledge base and all its documents."""
    if not yes:
        typer.confirm(f"delete knowledge base {name} with all its documents?", abort=True)
    with asking(knowledge_bases_pb2_grpc.KnowledgeBasesStub, address) as stub:
        bases.delete(stub, name)
    typer.echo(f"deleted {name}")
