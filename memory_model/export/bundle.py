"""Everything a device runs, made from a loaded model and written as one bundle."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from memory3.codec.codec import MemoryCodec
from memory3.codec.loading import load_codec
from memory3.codec.payload import MemoryFormat
from memory3.files.bundle import DEFAULT_FOLDER, Bundle, Manifest, check_place, staging_folder, write_bundle
from memory3.printable import Bars
from memory3.runtime.answerability import PROBE_FILE
from memory_model.data.factbook import read_jsonl
from memory_model.defaults import PRECISION
from memory_model.export.activations import KEYS, CalibrationRow, second_moments
from memory_model.export.decoder import export_decoder
from memory_model.export.embedder import export_embedder
from memory_model.export.weights import BITS, Precision
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel, load_model, open_adapter, open_probe


def export_bundle(
    model: str | Path | LoadedModel | None = None,
    out: str | Path = DEFAULT_FOLDER,
    precision: str | Precision = PRECISION,
    *,
    codec: str | Path | None = None,
    embedder: str | Path | None = None,
    embedder_precision: str = "int8",
    calibration: str | Path | None = None,
    quiet: bool = False,
) -> Bundle:
    """Export `model` (a model folder, by default the packaged one, or a loaded model) to the folder `out`.

    An older bundle there is replaced. precision: of the weights, a label as `Precision.parse` reads it. codec,
    calibration (JSONL rows that int4 weights are rounded for, "" for none), embedder ("minilm" or a folder, in int8
    or float32): by default the model folder's. Shows progress unless `quiet`; after an interruption nothing is left.
    Raises MissingFile, CorruptFile, InvalidInput.
    """
    out = Path(out)
    chosen = precision if isinstance(precision, Precision) else Precision.parse(precision)
    check_place(out)
    loaded, folder = (model, model.folder) if isinstance(model, LoadedModel) else (None, ModelFolder.open(model))
    calibration = folder.calibration if calibration is None else calibration
    rounded = 4 in (BITS[chosen.weights], BITS[chosen.table or chosen.weights])
    rows = read_jsonl(calibration, KEYS) if rounded and calibration else []
    memory_codec = load_codec(codec or folder.need_codec())
    # What does not fit is refused before anything large is read.
    MemoryFormat(loaded.config if loaded else folder.config(), "", memory_codec)
    if loaded is None:
        open_adapter(folder)
        open_probe(folder)
        folder.verify(folder.checkpoint)
    staging = staging_folder(out)
    try:
        with Bars(console=Console(stderr=True), disable=quiet) as progress:
            steps = progress.add_task("embedder", total=4)
            embedder_id = export_embedder(embedder or folder.embedder, staging, embedder_precision).embedder_id
            progress.update(steps, advance=1, description="loading the model")
            loaded = loaded or load_model(folder)
            progress.update(steps, advance=1, description=f"decoder ({chosen.label})")
            _write_decoder(loaded, staging, chosen, rows, progress)
            progress.update(steps, advance=1, description="checksums")
            _write_small_files(loaded, memory_codec, staging)
            minimum_score, ranking = folder.calibrated_for(embedder)
            manifest = Manifest(
                loaded.config.name,
                loaded.model_id,
                memory_codec.codec_id,
                loaded.config.memory_format_id,
                embedder_id,
                chosen.label,
                folder.licence,
                loaded.config,
                special_tokens=loaded.tokenizer.special,
                refusal=folder.refusal,
                minimum_score=minimum_score,
                ranking=ranking,
                grounding=folder.grounding,
            )
            bundle = write_bundle(out, staging, manifest)
            progress.update(steps, advance=1, description="done")
            return bundle
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_decoder(
    loaded: LoadedModel, staging: Path, precision: Precision, rows: Sequence[CalibrationRow], progress: Bars
) -> None:
    """rows: what int4 weights are rounded for; none for plain rounding."""
    moments = None
    if rows:
        reading = progress.add_task("  questions read to round for", total=len(rows))
        moments = second_moments(loaded, rows, lambda done, _: progress.update(reading, completed=done))
    layers = progress.add_task("  layers", total=loaded.config.layers)
    export_decoder(
        loaded, staging / "decoder.onnx", precision, lambda done, _: progress.update(layers, completed=done), moments
    )


def _write_small_files(loaded: LoadedModel, codec: MemoryCodec, staging: Path) -> None:
    (staging / "tokenizer.json").write_text(loaded.tokenizer_json, encoding="utf-8")
    (staging / "chat_template.jinja").write_text(loaded.chat_template, encoding="utf-8")
    codec.save(staging / "codec.npz")
    if loaded.probe is not None:
        loaded.probe.save(staging / PROBE_FILE)
