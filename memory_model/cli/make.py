"""Make the edge bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memory_model.cli.options import console, progress_bars


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


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command()(export)
    app.command()(init)
