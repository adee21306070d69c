"""`python -m experiments`: the studies, each a command; an interrupted one goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.ablation import ablation
from experiments.budget import budget_curve
from experiments.codec_curve import codec_curve
from experiments.corpus.command import prepare_data
from experiments.costs import cost
from experiments.curves import plot_run
from experiments.factbook import build_factbook
from experiments.long_conversation import long_conversation
from experiments.mean_adapter import mean_adapter
from experiments.paragraphs import split_questions
from experiments.quality import quality
from experiments.random_base import random_base
from experiments.training_cost import training_cost
from memory_model.cli.options import console
from memory_model.errors import Memory3Error

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
for study in (
    ablation, budget_curve, codec_curve, plot_run, mean_adapter, random_base, prepare_data, build_factbook,
    split_questions, training_cost, cost, quality, long_conversation,
):  # fmt: skip
    app.command()(study)


@app.command()
def report(
    numbers: Annotated[Path, typer.Option(help="Folder of bytes_curve.json and ablation.json.")] = Path(
        "docs/data"
    ),
    out: Annotated[Path, typer.Option(help="Page to write; figures go to images/ beside it.")] = Path(
        "docs/studies.md"
    ),
) -> None:
    """Write docs/studies.md and its figures."""
    from experiments.page import page, write_plots
    from experiments.results import Ablation, BytesCurve

    read = BytesCurve.load(numbers / "bytes_curve.json"), Ablation.load(numbers / "ablation.json")
    write_plots(*read, out.parent / "images")
    out.write_text(page(*read), encoding="utf-8")


if __name__ == "__main__":
    try:
        app()
    except Memory3Error as error:
        console.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise SystemExit(1) from error
