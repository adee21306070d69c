"""Everything a device runs, made from a loaded model and written as one bundle."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from memory_model.bundle import DEFAULT_FOLDER, Bundle, check_place, staging_folder, write_bundle
from memory_model.codec.codec import ExactCodec, MemoryCodec, ProductCodec
            chosen_embedder = embedder or (folder.embedder if folder else MINILM)
            embedder_id = export_embedder(chosen_embedder, staging, embedder_precision).embedder_id
            progress.update(steps, advance=1, description="checksums")
            (staging / "tokenizer.json").write_text(loaded.tokenizer_json, encoding="utf-8")
            (staging / "chat_template.jinja").write_text(loaded.chat_template, encoding="utf-8")
            memory_codec.save(staging / "codec.npz")
            export_codec(memory_codec, staging)
            bundle = write_bundle(
                out, staging, model_id=loaded.model_id, codec_id=memory_codec.codec_id, embedder_id=embedder_id,
                precision=chosen.label, capacity=capacity, licence=loaded.licence, config=loaded.config,
                special_tokens=loaded.tokenizer.special,
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
