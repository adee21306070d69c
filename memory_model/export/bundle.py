"""Everything a device runs, made from a loaded model and written as one bundle."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from memory_model.assets import asset
from memory_model.bundle import DEFAULT_FOLDER, Bundle, check_place, staging_folder, write_bundle
from memory_model.codec.codec import ExactCodec, MemoryCodec, ProductCodec
from memory_model.export.activations import read_rows, second_moments
from memory_model.export.codec import export_codec
from memory_model.export.decoder import export_decoder
from memory_model.export.embedder import MINILM, export_embedder
from memory_model.export.rounding import Calibrated
from memory_model.export.weights import BITS, Precision
from memory_model.models.load import DEFAULT_MODEL, LoadedModel, load_model

DEFAULT_PRECISION = (
    "int4-64-table-int8"  # blocks of 64: TensorRT takes no shorter last block, and 576 is nine of them
)
DEFAULT_CAPACITY = 2048


def export_bundle(
    model: str | LoadedModel = DEFAULT_MODEL,
    out: str | Path = DEFAULT_FOLDER,
    precision: str | Precision = DEFAULT_PRECISION,
    capacity: int = DEFAULT_CAPACITY,
    *,
    codec: str | Path | None = None,
    embedder: str | Path = MINILM,
    embedder_precision: str = "float32",
    max_tokens: int = 0,
    calibration: str | Path | None = None,
    quiet: bool = False,
) -> Bundle:
    """Export `model` (a preset, a .gguf path or a loaded model) to the folder `out`, replacing an older bundle.

    precision: of the weights, a label as `Precision.parse` reads it. capacity: tokens of a conversation. codec: a
    `codec.npz`, by default the one shipped for the preset. embedder, embedder_precision, max_tokens: as
    `export_embedder` takes them. calibration: JSONL rows that int4 weights are rounded for, by default those
    shipped; "" rounds to the nearest.
    Shows progress unless `quiet`; after an interruption nothing is left. Raises MissingFile, CorruptFile,
    InvalidInput.
    """
    out = Path(out)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    chosen = (
        precision if isinstance(precision, Precision) else Precision.parse(precision)
    )  # before minutes of work
    check_place(out)
    staging = staging_folder(out)
    try:
        with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
            steps = progress.add_task("loading the model", total=4)
            rows = None
            if 4 in (BITS[chosen.weights], BITS[chosen.table or chosen.weights]) and calibration != "":
                rows = read_rows(calibration or asset(DEFAULT_MODEL, "calibration.jsonl"))
            loaded = load_model(model) if isinstance(model, str) else model
            codec_path = Path(codec) if codec else asset(DEFAULT_MODEL, "codec.npz")
            memory_codec = decoding_only(MemoryCodec.load(codec_path))
            progress.update(steps, advance=1, description=f"decoder ({chosen.label})")
            rounding = None
            if rows is not None:
                reading = progress.add_task("  questions read to round for", total=len(rows))
                moments = second_moments(
                    loaded, rows, lambda done, _: progress.update(reading, completed=done)
                )
                rounding = Calibrated(moments)
            layers = progress.add_task("  layers", total=loaded.config.layers)
            export_decoder(
                loaded, staging / "decoder.onnx", chosen, capacity,
                lambda done, _: progress.update(layers, completed=done), rounding,
            )  # fmt: skip
            progress.update(steps, advance=1, description="embedder")
            embedder_id = export_embedder(embedder, staging, embedder_precision, max_tokens).embedder_id
            progress.update(steps, advance=1, description="checksums")
            (staging / "tokenizer.json").write_text(loaded.tokenizer_json, encoding="utf-8")
            (staging / "chat_template.jinja").write_text(loaded.chat_template, encoding="utf-8")
            memory_codec.save(staging / "codec.npz")
            export_codec(memory_codec, staging)
            bundle = write_bundle(
                out, staging, model_id=loaded.model_id, codec_id=memory_codec.codec_id, embedder_id=embedder_id,
                precision=chosen.label, capacity=capacity, licence=loaded.licence, config=loaded.config,
            )  # fmt: skip
            progress.update(steps, advance=1, description="done")
            return bundle
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def decoding_only(codec: MemoryCodec) -> ExactCodec | ProductCodec:
    """The codec without the map that only encoding projects with: half of the file, and no part of its identity."""
    if isinstance(codec, ProductCodec):
        return ProductCodec(replace(codec.tables, into=None))
    assert isinstance(codec, ExactCodec)
    return codec
