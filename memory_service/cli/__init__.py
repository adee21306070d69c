"""The command `memory-service`."""

import typer

from memory_model.printable import Commands
from memory_service.cli.documents import documents_app
from memory_service.cli.ingest import ingest
from memory_service.cli.kb import backup, kb_app, restore
from memory_service.cli.keys import keys_app
from memory_service.cli.serve import migrate, serve

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="""The cloud half of Memory³ Edge: write documents as explicit memories, keep them, serve them to devices.

    \b
    memory-model export --out bundle         what devices need, and the service's embedder
    memory-service serve --bundle bundle     in another terminal; the commands below call it
    memory-service ingest notes/ --kb notes  text, Markdown, HTML, PDF, CSV, JSON lines, Parquet
    memory-service documents list notes      what is stored

    Commands find the service by --address or MEMORY_SERVICE_ADDRESS and send the key MEMORY_SERVICE_CLIENT_API_KEY.
    """,
)
for command in (serve, ingest, backup, restore, migrate):
    app.command()(command)
app.add_typer(kb_app, name="kb")
app.add_typer(documents_app, name="documents")
app.add_typer(keys_app, name="keys")
