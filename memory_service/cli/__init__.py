"""The command `memory-service`: one file a command."""

import typer

from memory_service.cli.backup import backup, restore
from memory_service.cli.doctor import doctor
from memory_service.cli.documents import documents_app
from memory_service.cli.ingest import ingest
from memory_service.cli.kb import kb_app
from memory_service.cli.keys import keys_app
from memory_service.cli.serve import migrate, serve

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The cloud half of Memory³ Edge: write documents as explicit memories, keep them, serve them to devices."
    " Begin with `serve --bundle FOLDER`, then `ingest FILE…`, then `doctor`.",
)
for command in (serve, ingest, doctor, backup, restore, migrate):
    app.command()(command)
app.add_typer(kb_app, name="kb")
app.add_typer(documents_app, name="documents")
app.add_typer(keys_app, name="keys")
