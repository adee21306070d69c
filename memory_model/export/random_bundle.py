"""A whole bundle of a published shape with random weights: what `memory-model init` writes.

Tokenizer, chat template and embedder are the default model's. The codec is the paper's in shape, code for
code and byte for byte of work (OPQ20_80,Residual2x14,PQ8x10: 14 bytes a vector), its tables random too.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.progress import Progress

from memory_model.bundle import Bundle, check_place, staging_folder, write_bundle
from memory_model.codec.codec import ProductCodec, ProductTables
from memory_model.config import ModelConfig
from memory_model.errors import InvalidInput
from memory_model.export.codec import export_codec
from memory_model.export.decoder import decoder_graphs, save_decoder
from memory_model.export.embedder import MINILM, export_embedder
from memory_model.export.weights import Precision
from memory_model.models.load import base_checkpoint
from memory_model.models.random_weights import RandomWeights

LICENCE = "random weights, no licence needed; tokenizer Apache-2.0"


def paper_codec(head_dim: int, seed: int = 0) -> ProductCodec:
    """`OPQ{d/4}_{d},Residual2x14,PQ8x10` with random tables: a rotation, 2 x 2^14 and 8 x 2^10 codewords."""
    if head_dim % 8:
        raise InvalidInput(f"the paper's codec cuts a vector into 8 parts, {head_dim} numbers do not divide")
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((head_dim, head_dim)))[0].astype(np.float32)
    coarse = rng.standard_normal((1, 2, 1 << 14, head_dim // 2), np.float32)
    words = 0.3 * rng.standard_normal((1, 8, 1 << 10, head_dim // 8), np.float32)
    # float16 numbers, so that the file is half as large and decodes to the same
    coarse, words = (a.astype(np.float16).astype(np.float32) for a in (coarse, words))
    return ProductCodec(ProductTables(np.zeros((1, head_dim), np.float32), basis[None], words, coarse))


def export_random(
    config: ModelConfig,
    out: str | Path,
    precision: Precision,
    capacity: int,
    progress: Progress,
    *,
    seed: int = 0,
    embedder: str | Path = MINILM,
) -> Bundle:
    """Write a bundle of random weights to the folder `out`; its name in the manifest ends in `-random`.

    Weights are made, rounded and stored layer by layer, so memory holds the stored file and one layer.
    After an interruption nothing is left. Raises InvalidInput, MissingFile.
    """
    out = Path(out)
    config = replace(config, name=f"{config.name}-random")
    weights = RandomWeights(config, seed)
    checkpoint = base_checkpoint()
    check_place(out)
    codec = paper_codec(config.head_dim, seed)
    staging = staging_folder(out)
    try:
        task = progress.add_task(f"decoder ({precision.label}), layers", total=config.layers)
        graphs = decoder_graphs(
            weights, config, precision, capacity, lambda done, _: progress.update(task, completed=done)
        )
        steps = progress.add_task("weights to disk", total=3)
        save_decoder(graphs, staging / "decoder.onnx")
        del graphs
        progress.update(steps, advance=1, description="embedder")
        embedder_id = export_embedder(embedder, staging).embedder_id
        progress.update(steps, advance=1, description="checksums")
        (staging / "tokenizer.json").write_text(checkpoint.tokenizer_json(), encoding="utf-8")
        (staging / "chat_template.jinja").write_text(checkpoint.chat_template(), encoding="utf-8")
        codec.save(staging / "codec.npz")
        export_codec(codec, staging)
        bundle = write_bundle(
            out, staging, model_id=weights.model_id, codec_id=codec.codec_id,
            embedder_id=embedder_id, precision=precision.label, capacity=capacity,
            licence=LICENCE, config=config,
        )  # fmt: skip
        progress.update(steps, advance=1, description="done")
        return bundle
    finally:
        shutil.rmtree(staging, ignore_errors=True)
