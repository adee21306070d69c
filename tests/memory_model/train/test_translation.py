"""Two models of one base: what one wrote becomes, by a fitted map, nearly what the other writes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from memory3.codec.codec import ExactCodec
from memory3.codec.payload import MemoryFormat
from memory3.codec.translation import FOLDER, load_translations
from memory3.config import parse_budget
from memory_model.cli import app
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel, load_base, load_model
from memory_model.nn.adapter import attach, collect
from tests.memory_model.models.published import published


def format_of(loaded: LoadedModel, dtype: str = "float32") -> MemoryFormat:
    return MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim, dtype))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `old` and `new` of one base, the latter with an adapter; `coded` is `old` with another codec."""
    folder = tmp_path_factory.mktemp("models")
    published(folder / "base", "llama-3")
    old = ModelFolder.create(folder / "base", folder / "old", memory=lambda c: parse_budget("all", c))
    ExactCodec(16).save(old.path / "codec.npz")
    for name in ("new", "coded", "sparse"):
        shutil.copytree(old.path, folder / name)
    ExactCodec(16, "float16").save(folder / "coded" / "codec.npz")
    manifest = json.loads((folder / "sparse" / "model.json").read_text())
    manifest["memory"]["heads"] = [[1, 0, 128], [3, 1, 128]]
    (folder / "sparse" / "model.json").write_text(json.dumps(manifest))
    loaded = load_base(old, old.memory)
    torch.manual_seed(0)
    for parameter in attach(loaded.model, 4, 4.0, 0):
        parameter.data.normal_(0, 0.05)
    collect(loaded.model, old.memory, old.base_id, {}).save(folder / "new" / "adapter.safetensors")
    rows = [{"key": f"k{n}", "title": f"L{n}", "text": f"Area: {n * 37} km\nClimate: dry {n}"} for n in range(60)]
    (folder / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def command(models: Path, old: str, new: str) -> str:
    line = f"translate-memories {models / old} {models / new} --data {models / 'facts.jsonl'} --references 60"
    done = CliRunner().invoke(app, line.split(), env={"COLUMNS": "200"})
    return done.output if done.exit_code == 0 else f"{done.output}{done.exception}"


def test_translated_memories_are_nearer_to_the_new_models_than_the_old_ones(models: Path) -> None:
    said = command(models, "old", "new")
    assert "references a second" in said
    old, new = load_model(models / "old"), load_model(models / "new")
    (translation,) = load_translations(models / "new", format_of(new))
    texts = [f"M{n}\nArea: {n * 31} km\nClimate: wet {n}" for n in range(8)]
    before, wanted = old.writer.write(texts), new.writer.write(texts)
    made = format_of(new).decode(translation(format_of(old).encode(before)))
    for side in ("keys", "values"):
        true = np.concatenate([getattr(one, side) for one in wanted])
        far, near = (
            np.square(np.concatenate([getattr(one, side) for one in found]) - true).sum() for found in (before, made)
        )
        assert near < 0.5 * far, side


def test_a_model_with_another_codec_needs_no_map(models: Path) -> None:
    assert "only the codec differs" in command(models, "old", "coded")
    loaded = load_model(models / "coded")
    (translation,) = load_translations(models / "coded", format_of(loaded, "float16"))
    assert translation.maps is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("old", "old", "write the same memories"),
        ("old", "sparse", "keep other heads"),
        ("old", "smollm2-135m", "is not written to: give --out"),
    ],
)
def test_what_cannot_be_translated_is_refused_before_weights_are_read(
    models: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    monkeypatch.setattr("memory_model.models.load.Decoder", None)
    path = new if new == "smollm2-135m" else models / new
    line = ["translate-memories", str(models / old), str(path), "--data", str(models / "facts.jsonl")]
    done = CliRunner().invoke(app, line, env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert said in done.output.replace("\n", " ") + str(done.exception)
    assert not (models / "old" / FOLDER).exists()
