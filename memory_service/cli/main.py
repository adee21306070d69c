"""`memory-service`: serve, ingest, kb, documents, keys, backup, restore and doctor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import grpc
import typer
from rich.console import Console
from rich.table import Table

from memory_model.printable import printable
from memory_service.cli.backup import backup, restore
from memory_service.cli.doctor import doctor
from memory_service.cli.documents import documents_app
from memory_service.cli.ingest import ingest
from memory_service.cli.keys import keys_app
from memory_service.cli.terminal import errors_for_people, plain
from memory_service.client.remote import channel_to, remote_error
from memory_service.settings import CONFIG_VARIABLE, DEFAULT_ADDRESS, load_settings
from memory_service.stores.address import parse_address
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from protos.memory.v1 import knowledge_bases_pb2_grpc

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The cloud half of Memory³ Edge.")
kb_app = typer.Typer(no_args_is_help=True, help="Knowledge bases: create, list, show, delete.")
app.add_typer(kb_app, name="kb")
app.add_typer(documents_app, name="documents")
app.add_typer(keys_app, name="keys")
app.command()(backup)
app.command()(restore)
app.command()(ingest)
app.command()(doctor)

Address = Annotated[
    str, typer.Option("--address", envvar="MEMORY_SERVICE_ADDRESS", help="host:port of the service")
]
_STORES = "chdb:///path, file:///path, clickhouse[s]://user@host/database or myscale[s]://…"
BaseName = Annotated[str, typer.Argument(metavar="NAME", help="name of the knowledge base")]


@app.command()
def serve(
    listen: Annotated[
        str | None, typer.Option(help=f"host:port or unix:/path; default {DEFAULT_ADDRESS}")
    ] = None,
    store: Annotated[Optional[str], typer.Option(help=_STORES)] = None,  # noqa: UP045
    port_file: Annotated[Optional[Path], typer.Option(help="file that gets the port when ready")] = None,  # noqa: UP045
    bundle: Annotated[Optional[Path], typer.Option(help="edge bundle to serve and to embed with")] = None,  # noqa: UP045
    embedder: Annotated[Optional[Path], typer.Option(help="folder of the embedder")] = None,  # noqa: UP045
    model: Annotated[Optional[Path], typer.Option(help="model folder that writes memories")] = None,  # noqa: UP045
    keys: Annotated[
        Path | None, typer.Option(help="file of API keys; without, callers are not checked")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="let other machines in without authentication")
    ] = None,
    config: Annotated[Path | None, typer.Option(envvar=CONFIG_VARIABLE, help="TOML file of settings")] = None,
) -> None:
    """Serve until SIGTERM. Every setting can also be given as MEMORY_SERVICE_<NAME> or in the file."""
    from memory_service.api.server import run, serve_until_signal
    from memory_service.ops.logs import configure_logs, logger
    from memory_service.write.encoder import ModelEncoder

    given = {
        "listen": listen, "store": store, "port_file": port_file,
        "bundle": bundle, "embedder": embedder, "model": model,
        "keys": keys, "insecure": insecure,
    }  # fmt: skip
    with errors_for_people():
        settings = load_settings(config, {name: value for name, value in given.items() if value is not None})
        configure_logs(settings.log_level, settings.log_format)
        logger().info(
            "loading", model=str(settings.model or "packaged"), store=str(parse_address(settings.store))
        )  # takes seconds: do not be silent
        run(serve_until_signal(settings, lambda: ModelEncoder(settings)))


@app.command()
def migrate(
    store: Annotated[Optional[str], typer.Option(help=_STORES)] = None,  # noqa: UP045
    config: Annotated[Path | None, typer.Option(envvar=CONFIG_VARIABLE, help="TOML file of settings")] = None,
) -> None:
    """Bring a store to this version's format and end; `serve` does the same when it starts."""
    from memory_service.ops.logs import configure_logs
    from memory_service.stores import open_store

    with errors_for_people():
        settings = load_settings(config, {"store": store} if store else {})
        configure_logs(settings.log_level, settings.log_format)
        address = parse_address(settings.store)
        opened = open_store(settings.store, settings.store_options())
        try:
            count = len(opened.knowledge_bases())
        finally:
            opened.close()
        typer.echo(f"{address} is up to date, {count} knowledge bases")


def _call(address: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
    """Runs one call of the KnowledgeBases service and returns its response."""

    async def run() -> Any:
        async with channel_to(address) as channel:
            try:
                return await call(knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel))
            except grpc.aio.AioRpcError as error:
                raise remote_error(error, address) from error

    with errors_for_people():
        return asyncio.run(run())


def _state(base: kb_pb.KnowledgeBase) -> str:
    return kb_pb.KnowledgeBaseState.Name(base.state).removeprefix("KNOWLEDGE_BASE_STATE_").lower()


@kb_app.command("create")
def kb_create(
    name: BaseName,
    description: Annotated[str, typer.Option(help="for people")] = "",
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Create an empty knowledge base for the model the service runs."""
    request = kb_pb.CreateKnowledgeBaseRequest(name=name, description=description)
    _call(address, lambda stub: stub.CreateKnowledgeBase(request, timeout=30))
    typer.echo(f"created {name}")


@kb_app.command("list")
def kb_list(address: Address = DEFAULT_ADDRESS) -> None:
    """List all knowledge bases."""
    response = _call(
        address, lambda stub: stub.ListKnowledgeBases(kb_pb.ListKnowledgeBasesRequest(), timeout=30)
    )
    table = Table("name", "state", "model", "created", "description")
    for base in response.knowledge_bases:
        created = base.created_at.ToJsonString()
        table.add_row(plain(base.name), _state(base), base.model_id[:12], created, plain(base.description))
    Console().print(table)


@kb_app.command("show")
def kb_show(name: BaseName, address: Address = DEFAULT_ADDRESS) -> None:
    """Show ids, state and counts of a knowledge base."""
    request = kb_pb.GetKnowledgeBaseRequest(name=name)
    base = _call(address, lambda stub: stub.GetKnowledgeBase(request, timeout=30)).knowledge_base
    for field in (
        "name",
        "description",
        "model_id",
        "codec_id",
        "memory_format_id",
        "embedder_id",
        "dimension",
    ):
        typer.echo(printable(f"{field}: {getattr(base, field)}"))
    typer.echo(f"created_at: {base.created_at.ToJsonString()}\nstate: {_state(base)}")
    if base.problem:
        typer.echo(printable(f"problem: {base.problem}"))
    if base.state == kb_pb.KNOWLEDGE_BASE_STATE_DAMAGED:
        return  # nobody knows what is left of it
    counts = _call(
        address, lambda stub: stub.GetStatistics(kb_pb.GetStatisticsRequest(name=name), timeout=60)
    )
    for field in ("document_count", "reference_count", "payload_bytes", "text_bytes", "stored_bytes"):
        typer.echo(f"{field}: {getattr(counts, field)}")
    typer.echo(f"without_memories_yet: {counts.unwritten_document_count}")


@kb_app.command("delete")
def kb_delete(
    name: BaseName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Delete a knowledge base with everything in it."""
    if not yes:
        typer.confirm(f"delete knowledge base {name} with all its documents?", abort=True)
    _call(
        address,
        lambda stub: stub.DeleteKnowledgeBase(kb_pb.DeleteKnowledgeBaseRequest(name=name), timeout=120),
    )
    typer.echo(f"deleted {name}")
