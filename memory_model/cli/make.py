"""Make a model folder of a base, and a bundle of a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memory_model.defaults import ASSETS, MINILM, PRECISION, TINY
from memory_model.terminal import ModelOption, console, count

BUNDLE = Path("build/bundle")
_CALIBRATION_TEXTS = 16
_TUNED_HEADS = 8
"""What a tuned model of this size reads with; printed if all heads are read."""


def new(
    base: Annotated[
        Path, typer.Argument(help="Hugging Face folder, .gguf file, or `catalogue:NAME` of `memory-model list`.")
    ],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
    heads: Annotated[
        str,
        typer.Option(
            help="Memory budget: all (every token in every head), paper[:TOKENS] (8 tokens in every head of the first "
            "half of the layers), or LAYER.HEAD:TOKENS,… (as `rank-heads` prints it)."
        ),
    ] = "all",
    embedder: Annotated[str, typer.Option(help="Embedder: minilm, or a folder such as BGE-M3.")] = MINILM,
    chat_template: Annotated[Path | None, typer.Option(help="Jinja chat template; default: the base's.")] = None,
    reference_tokens: Annotated[int, count(help="Longest reference, in tokens.")] = 128,
) -> None:
    """Make a model folder from a base model: check shape, tokenizer and chat template, and set the memory budget.

    The base is not copied. The folder works at once: large models read memories of all heads without tuning, and its
    codec rounds each number to 4 bits. `eval` measures it, `export` writes the bundle for devices. For smaller
    memories, `adapt --model OUT` tunes it to read few heads, and `fit-codec --model OUT` fits a codec to them.
    """
    from memory3.codec.loading import load_codec
    from memory3.codec.payload import MemoryFormat
    from memory3.config import parse_budget
    from memory3.errors import MissingFile
    from memory3.text.references import split
    from memory_model.data.factbook import read_jsonl
    from memory_model.export.activations import KEYS
    from memory_model.models.folder import ModelFolder
    from memory_model.models.load import load_model
    from memory_model.train.codec_fit import has_scalar_codec, scalar_codec

    if embedder != MINILM and not (embedder and Path(embedder).is_dir()):
        raise MissingFile(f"no embedder at {embedder}: give minilm, or the folder of a BERT or XLM-R")
    with console.status("hashing") as status:

        def complete(made: ModelFolder) -> None:
            """Add a codec that needs no fitting, where there is one."""
            memory = made.memory
            if not has_scalar_codec(memory):
                return
            status.update(f"writing {_CALIBRATION_TEXTS} memories for the codec")
            rows, loaded = read_jsonl(ModelFolder.open(ASSETS / TINY).calibration or "", KEYS), load_model(made)
            texts = [split(row["knowledge"], "", loaded.tokenizer.count, memory.reference_tokens)[0] for row in rows]
            codec = scalar_codec(loaded.writer, memory, sorted(texts, key=len)[-_CALIBRATION_TEXTS:])
            codec.save(made.path / "codec.npz")

        made = ModelFolder.create(
            base,
            out,
            memory=lambda config: parse_budget(heads, config, reference_tokens),
            embedder=embedder if embedder == MINILM else str(Path(embedder).resolve()),
            chat_template=chat_template.read_text(encoding="utf-8") if chat_template else "",
            progress=lambda name: status.update(f"hashing {name}"),
            complete=complete,
        )
    config, memory = made.config(), made.memory
    console.print(
        f"{made.name}: {config.layers} layers, {config.parameters() / 1e6:,.1f} M parameters, "
        f"{len(memory.heads)} memory heads, {memory.vectors:,} vectors a memory; in [bold]{out}[/bold]"
    )
    if made.codec is None:
        console.print(f"its heads keep different tokens: memory-model fit-codec --model {out} makes its codec")
        return
    size = MemoryFormat(config, "", load_codec(made.codec)).full_bytes
    tuned = 2 * _TUNED_HEADS * config.head_dim * memory.reference_tokens // 8
    console.print(f"{size:,} bytes a memory at 4 bits a number; ready for `eval` and `export --model {out}`")
    if size > tuned:
        console.print(
            f"`adapt`, `rank-heads` and `fit-codec` save most of it: {_TUNED_HEADS} heads at 1 bit a number take"
            f" {tuned:,} bytes"
        )


def export(
    out: Annotated[Path, typer.Option(help="Bundle folder; an older one is replaced.")] = BUNDLE,
    model: ModelOption = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Weights: int4, int8, float16 or float32; -64 or -128: block; then -attention-int8: attention's "
            "projections, -down-int8: MLPs' down projections, -table-int8: token table."
        ),
    ] = PRECISION,
    embedder: Annotated[str | None, typer.Option(help="minilm or a folder; default: the model folder's.")] = None,
    embedder_precision: Annotated[
        str, typer.Option(help="int8: smaller, twice as fast; or float32, for a GPU.")
    ] = "int8",
    codec: Annotated[Path | None, typer.Option(help="codec.npz; default: the model folder's.")] = None,
    calibration: Annotated[
        str | None, typer.Option(help='JSONL of questions for int4 calibration, "" for none; default: the model\'s.')
    ] = None,
) -> None:
    """Write the bundle for devices: ONNX decoder and embedder, tokenizer, codec, chat template, manifest.

    With calibration rows, int4 rounding minimises the change of layer outputs while the model answers them (about a
    minute more for the packaged model). Without, weights are rounded to the nearest value.
    """
    from memory_model.export.bundle import export_bundle

    bundle = export_bundle(
        model,
        out,
        precision,
        codec=codec,
        embedder=embedder,
        embedder_precision=embedder_precision,
        calibration=calibration,
    )
    size = sum(f.stat().st_size for f in out.iterdir()) / 1e6
    console.print(f"bundle of {bundle.config.name} ({precision}, {size:.0f} MB) in [bold]{out}[/bold]")
