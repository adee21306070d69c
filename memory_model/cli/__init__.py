"""`memory-model`: make a model that reads memories, and measure it."""

from __future__ import annotations

from typing import Annotated

import typer

from memory3.printable import Commands, version_option
from memory_model.cli.catalogue import list_models, pull
from memory_model.cli.evaluation import calibrate, evaluate, fit_refusal, fit_requests
from memory_model.cli.make import export, new
from memory_model.cli.memory import fit_codec, rank_heads
from memory_model.cli.pretraining import pretrain
from memory_model.cli.retrieval import calibrate_retrieval
from memory_model.cli.translation import translate_memories
from memory_model.cli.tuning import adapt


class _Commands(Commands):
    interrupted = "interrupted; run the same command again (adapt and pretrain resume from their last checkpoint)"


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="""Make, compress, export and measure models that read explicit memory.

    To convert a model, run new, adapt, rank-heads, adapt, fit-codec, eval and export (docs/guides/your-own-model.md).
    The packaged model only needs export.

    Exit codes: 0 success, 1 error (the message gives the remedy), 2 wrong arguments, 130 interrupted.
    """,
)

_NAMES = {evaluate: "eval", list_models: "list"}


@app.callback()
def main(version: Annotated[bool, version_option("memory-model")] = False) -> None:
    """Options of all commands."""


for command in (
    pull,
    list_models,
    new,
    adapt,
    rank_heads,
    fit_codec,
    translate_memories,
    evaluate,
    fit_refusal,
    fit_requests,
    calibrate,
    calibrate_retrieval,
    export,
    pretrain,
):
    app.command(_NAMES.get(command))(command)
