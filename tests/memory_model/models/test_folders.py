"""Model folders and their checkpoints: read as they are published, or refused before anything large is read."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from memory3.codec.codec import ExactCodec
from memory3.config import parse_budget
from memory3.errors import BaseMismatch, CorruptFile, InvalidInput, Memory3Error, MissingFile, ModelMismatch
from memory3.runtime.answerability import PROBE_FILE, AnswerabilityProbe, query_width
from memory3.text.tokenizer import SpecialTokens
from memory3.text.words import DEFAULT_RANKING, Ranking
from memory_model.export.bundle import export_bundle
from memory_model.models.folder import ModelFolder
from memory_model.models.gguf import GgufFile
from memory_model.models.load import load_base, load_model
from memory_model.nn.adapter import attach, collect
from testing.shapes import SMOLLM2_135M
from tests.edge_client.tiny_bundle import tiny_bert
from tests.memory_model.damage import cut, edit, remove
from tests.memory_model.models.published import add_tokenizer, published


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases") / "Tiny-Llama"
    published(folder, "llama-3")
    return folder


@pytest.fixture
def copy(base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "copy"))


def new(base: Path, out: Path, heads: str = "paper") -> ModelFolder:
    return ModelFolder.create(base, out, memory=lambda config: parse_budget(heads, config))


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_new_folder_has_the_papers_budget_and_opens_again(base: Path, tmp_path: Path) -> None:
    made = new(base, tmp_path / "model")
    assert [(h.layer, h.head, h.tokens) for h in made.memory.heads] == [(0, 0, 8), (0, 1, 8), (1, 0, 8), (1, 1, 8)]
    opened = ModelFolder.open(tmp_path / "model")
    assert opened == made
    loaded = load_model(opened)
    assert loaded.config.name == "tiny-llama"
    assert loaded.model_id == load_model(tmp_path / "model").model_id


def test_every_way_of_storing_weights_gives_the_same_model(copy: Path, tmp_path: Path) -> None:
    first = weights_of(load_model(new(copy, tmp_path / "a")).model)
    stored = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(stored)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({n: stored[n] for n in part}, copy / file)
    index = {"weight_map": {n: file for file, part in parts.items() for n in part}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = weights_of(load_model(new(copy, tmp_path / "b")).model)
    for file in (*parts, "model.safetensors.index.json"):
        (copy / file).unlink()
    torch.save(stored, copy / "pytorch_model.bin")
    pickled = weights_of(load_model(new(copy, tmp_path / "c")).model)
    for other in (sharded, pickled):
        assert first.keys() == other.keys()
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_a_model_that_only_writes_is_loaded_up_to_its_last_memory_layer(base: Path, tmp_path: Path) -> None:
    folder = ModelFolder.create(base, tmp_path / "m", memory=lambda config: parse_budget("0.1:8,1.0:8", config))
    whole, part = load_model(folder), load_model(folder, writes_only=True)
    assert (len(whole.model.layers), len(part.model.layers), part.model_id) == (4, 2, whole.model_id)
    assert not any(".1.mlp" in name or ".1.self_attn.o_proj" in name for name in part.model.state_dict())
    for ours, theirs in zip(part.writer.write(["A text."]), whole.writer.write(["A text."]), strict=True):
        np.testing.assert_array_equal(ours.keys, theirs.keys)
        np.testing.assert_array_equal(ours.values, theirs.values)


def test_large_bfloat16_weights_stay_bfloat16(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {n: t.bfloat16() for n, t in load_file(copy / "model.safetensors").items()}
    save_file(stored, copy / "model.safetensors")
    folder = new(copy, tmp_path / "model", "all")
    wide = load_model(folder)
    monkeypatch.setattr("memory_model.models.tensor_files.FLOAT32_BYTES", 1000)
    narrow = load_model(folder)
    assert {t.dtype for t in narrow.model.state_dict().values()} == {torch.bfloat16}
    memories = [loaded.writer.write(["Paris is a city."])[0] for loaded in (narrow, wide)]
    assert abs(memories[0].keys - memories[1].keys).max() / abs(memories[1].keys).max() < 0.05


def lose_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    places = {"model.norm.weight": "model-1.safetensors", "lm_head.weight": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def add_a_weight(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    save_file({**stored, "model.layers.0.mlp.router.weight": torch.zeros(2, 2)}, folder / "model.safetensors")


def pickle_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Path("x")}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("harm", "kind", "named"),
    [
        (remove("config.json"), MissingFile, "config.json"),
        (edit("config.json", model_type="gemma3"), InvalidInput, "gemma3"),
        (edit("config.json", hidden_size=128), CorruptFile, "shape"),
        (edit("config.json", num_hidden_layers=5), CorruptFile, "layers.4"),
        (edit("config.json", num_hidden_layers=3), InvalidInput, "layers.3"),
        (remove("model.safetensors"), MissingFile, "no weights"),
        (cut("model.safetensors", 0.9), CorruptFile, "truncated"),
        (lose_a_shard, MissingFile, "model-2.safetensors"),
        (add_a_weight, InvalidInput, "router"),
        (pickle_code, CorruptFile, "more than tensors"),
        (remove("tokenizer.json"), MissingFile, "save_pretrained"),
        (cut("tokenizer.json", 0.5), CorruptFile, "not a tokenizer"),
        (lambda folder: add_tokenizer(folder, template=""), InvalidInput, "--chat-template"),
        (edit("tokenizer_config.json", chat_template=[1, 2]), CorruptFile, "chat templates"),
        (edit("config.json", vocab_size=[1]), CorruptFile, "config.json"),
        (edit("config.json", rope_parameters={"rope_theta": -1.0}), InvalidInput, "rotary base -1"),
        (edit("config.json", rms_norm_eps=float("nan")), InvalidInput, "epsilon nan"),
    ],
)
def test_a_damaged_base_is_refused_and_nothing_is_written(
    copy: Path, tmp_path: Path, harm: Callable[[Path], None], kind: type[Memory3Error], named: str
) -> None:
    harm(copy)
    with pytest.raises(kind, match=named):
        new(copy, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_tokenizer_of_another_model_is_refused(copy: Path, tmp_path: Path) -> None:
    published(copy, "llama-3", vocab_size=100)
    with pytest.raises(InvalidInput, match="100 rows"):
        new(copy, tmp_path / "model")


@pytest.mark.parametrize("damage", [{"path": 1}, {"sha256": 1}, {"sizes": "x"}, {"sizes": {"config.json": [1]}}])
def test_a_model_json_of_other_types_is_refused(base: Path, tmp_path: Path, damage: dict[str, Any]) -> None:
    made = new(base, tmp_path / "model")
    data = json.loads((made.path / "model.json").read_text())
    data["base"] |= damage
    (made.path / "model.json").write_text(json.dumps(data))
    with pytest.raises((CorruptFile, MissingFile, BaseMismatch), match="model"):
        load_model(made.path)


def test_a_base_that_changed_is_refused(copy: Path, tmp_path: Path) -> None:
    folder = new(copy, tmp_path / "model")
    stored = load_file(copy / "model.safetensors")
    stored["model.norm.weight"] += 1
    save_file(stored, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BaseMismatch, match=f"{folder.path} is of base weights {folder.base_id[:12]}"):
        load_model(folder.path)
    cut("model.safetensors", 0.5)(copy)
    with pytest.raises(CorruptFile, match=r"model\.safetensors"):
        load_model(folder.path)
    shutil.rmtree(copy)
    with pytest.raises(MissingFile, match="not at"):
        load_model(folder.path)


def test_an_adapter_of_another_base_or_budget_is_refused(base: Path, tmp_path: Path) -> None:
    folder = new(base, tmp_path / "model")
    loaded = load_base(folder, folder.memory)
    attach(loaded.model, 4, 4.0, 0)
    collect(loaded.model, folder.memory, "0" * 64, {}).save(folder.path / "adapter.safetensors")
    with pytest.raises(BaseMismatch):
        load_model(folder.path)
    other = parse_budget("0.0:8", loaded.config)
    collect(loaded.model, other, folder.base_id, {}).save(folder.path / "adapter.safetensors")
    with pytest.raises(InvalidInput, match="another memory budget"):
        load_model(folder.path)


def test_a_codec_is_needed_and_must_fit_before_a_bundle_is_made(base: Path, tmp_path: Path) -> None:
    folder = new(base, tmp_path / "model")
    bert = tiny_bert(tmp_path / "bert")
    with pytest.raises(MissingFile, match="fit-codec"):
        export_bundle(folder.path, tmp_path / "bundle", "float32", embedder=bert, quiet=True)
    ExactCodec(8).save(folder.path / "codec.npz")
    with pytest.raises(InvalidInput, match="head dimension"):
        export_bundle(folder.path, tmp_path / "bundle", "float32", embedder=bert, quiet=True)
    ExactCodec(16).save(folder.path / "codec.npz")
    bundle = export_bundle(folder.path, tmp_path / "bundle", "float32", embedder=bert, quiet=True)
    assert bundle.manifest.special_tokens == SpecialTokens(bos=257, eos=258, end_of_turn=258, stop=(256,))
    assert bundle.identity.model_id == load_model(folder).model_id


def test_a_probe_of_another_model_is_refused_before_a_bundle_is_begun(base: Path, tmp_path: Path) -> None:
    folder = new(base, tmp_path / "model")
    ExactCodec(16).save(folder.path / "codec.npz")
    weights = np.zeros(query_width(folder.config()), np.float32)
    AnswerabilityProbe("0" * 64, weights, np.array([1]), np.zeros(1)).save(folder.path / PROBE_FILE)
    with pytest.raises(ModelMismatch, match="fit-refusal"):
        export_bundle(folder.path, tmp_path / "bundle", "float32", embedder=tmp_path / "no embedder", quiet=True)


def test_a_bundle_has_the_numbers_of_the_folders_own_embedder_however_it_is_named(base: Path, tmp_path: Path) -> None:
    own, other, ranking = tiny_bert(tmp_path / "bert"), tiny_bert(tmp_path / "other"), Ranking(0.03, 0.1, 0.2)
    folder = replace(new(base, tmp_path / "model"), embedder=str(own), minimum_score=0.4, ranking=ranking)
    folder.save()
    ExactCodec(16).save(folder.path / "codec.npz")
    bundle = export_bundle(folder.path, tmp_path / "bundle", "float32", embedder=tmp_path / "other/../bert", quiet=True)
    assert (bundle.manifest.minimum_score, bundle.manifest.ranking) == (0.4, ranking)
    assert folder.calibrated_for(None) == folder.calibrated_for(str(own)) == (0.4, ranking)
    assert folder.calibrated_for(other) == folder.calibrated_for("minilm") == (None, DEFAULT_RANKING)
    assert replace(folder, embedder="minilm").calibrated_for("minilm") == (0.4, ranking)


def test_a_base_as_such_is_no_model_folder(base: Path) -> None:
    with pytest.raises(MissingFile, match="memory-model new"):
        load_model(base)


def test_the_packaged_folder_is_whole_and_not_written_to() -> None:
    folder = ModelFolder.open()
    with pytest.raises(InvalidInput, match="packaged model is not written to: give --out"):
        folder.require_own("give --out")
    assert all((folder.adapter, folder.codec, folder.calibration))
    assert folder.checkpoint.config("smollm2-135m") == SMOLLM2_135M


def test_a_truncated_gguf_file_is_refused(tmp_path: Path) -> None:
    whole = ModelFolder.open().checkpoint.files[0]
    short = tmp_path / "short.gguf"
    shutil.copyfile(whole, short)
    for keep in (whole.stat().st_size - 1, 1000, 0):
        with short.open("r+b") as file:
            file.truncate(keep)
        with pytest.raises(CorruptFile):
            GgufFile(short)
    with pytest.raises(MissingFile):
        GgufFile(tmp_path / "none.gguf")


def test_a_gguf_file_with_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    whole = ModelFolder.open().checkpoint.files[0].read_bytes()
    other = tmp_path / "other.gguf"
    place = whole.index(b"smollm", whole.index(b"tokenizer.ggml.pre"))
    other.write_bytes(whole[:place] + b"qwen99" + whole[place + 6 :])
    with pytest.raises(InvalidInput, match="qwen99"):
        new(other, tmp_path / "model")
