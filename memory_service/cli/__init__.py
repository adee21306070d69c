"""The command `memory-service`."""

from typing import Annotated

import typer

from memory3.printable import Commands, version_option
from memory_service.cli.backup import backup, backups, restore
from memory_service.cli.documents import documents_app
from memory_service.cli.ingest import ingest
from memory_service.cli.kb import kb_app
from memory_service.cli.keys import keys_app
from memory_service.cli.serve import all_settings, migrate, serve

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="""The service of Memory³ Edge: turn documents into explicit memories, store them and serve them to devices.

    \b
    memory-model export --out bundle         write the devices' bundle
    memory-service serve --bundle bundle     start it, in another terminal
    memory-service ingest notes/ --kb notes  ingest text, HTML, PDF, JSONL, …
    memory-service documents list notes      list stored documents

    Commands call the service at --address or MEMORY_SERVICE_ADDRESS, with the API key MEMORY_SERVICE_CLIENT_API_KEY.
    """,
)


@app.callback()
def main(version: Annotated[bool, version_option("memory-service")] = False) -> None:
    """Options of all commands."""


app.command(epilog=all_settings())(serve)
for command in (ingest, backup, backups, restore, migrate):
    app.command()(command)
app.add_typer(kb_app, name="kb")
app.add_typer(documents_app, name="documents")
app.add_typer(keys_app, name="keys")
