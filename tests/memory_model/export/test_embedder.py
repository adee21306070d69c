"""Exported embedders equal transformers in every published layout, and what cannot be exported is refused first."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.runtime.embedder import CPU_ALONE, Embedder
from memory_model.export.embedder import encoder_graph, export_embedder
from memory_model.models.encoder import read_encoder
from tests.memory_model.damage import cut, edit, remove
from tests.memory_model.encoder_folders import TEXTS, bert, expected, save, say_pooling, unigram_tokenizer, xlm_r

TOLERANCE = 1e-5  # float32 sums in another order
LAYOUTS = ("safetensors", "sharded", "bin", "sharded-bin")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("make", [xlm_r, bert])
def test_every_layout_equals_transformers(make: object, pooling: str, layout: str, tmp_path: Path) -> None:
    model = make()  # type: ignore[operator]
    export_embedder(save(model, tmp_path / "tiny", layout, pooling), tmp_path / "out")
    embedder = Embedder(tmp_path / "out")
    np.testing.assert_allclose(embedder.embed(TEXTS), expected(model, pooling), atol=TOLERANCE)
    assert (embedder.name, embedder.config.pooling, embedder.config.max_tokens) == ("tiny", pooling, 64)
    assert len(embedder.config.source.split()) == (4 if "sharded" in layout else 1), embedder.config.source


def test_one_id_for_all_layouts_and_precisions_and_another_for_other_weights_tokenizer_or_pooling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = xlm_r()
    found = [export_embedder(save(model, tmp_path / n, n, "cls"), tmp_path / f"{n}-out") for n in LAYOUTS]
    source = tmp_path / "bin"
    found.append(export_embedder(source, tmp_path / "int8", "int8"))
    with monkeypatch.context() as patch:
        patch.setattr("memory_model.export.embedder.TOKEN_LIMIT", 9)
        found.append(export_embedder(source, tmp_path / "cut"))
    assert len({config.embedder_id for config in found}) == 1
    vectors = [Embedder(tmp_path / name).vectors_id for name in ("bin-out", "int8", "cut")]
    assert len(set(vectors)) == 3, "what caches vectors keeps these apart"

    others = [export_embedder(save(model, tmp_path / "mean", "bin", "mean"), tmp_path / "o1")]
    tokenizer = unigram_tokenizer()
    tokenizer.add_tokens(["Norway"])
    tokenizer.save(str(source / "tokenizer.json"))
    others.append(export_embedder(source, tmp_path / "o2"))
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[5, 5] += 1e-3
    others.append(export_embedder(save(model, tmp_path / "changed", "bin", "cls"), tmp_path / "o3"))
    assert len({config.embedder_id for config in (found[0], *others)}) == 4


@pytest.mark.parametrize("prefix", ["roberta.", "0.auto_model.", "model.bert."])
def test_names_may_have_a_prefix(prefix: str, tmp_path: Path) -> None:
    model = xlm_r()
    source = save(model, tmp_path / "tiny", "bin", "cls")
    torch.save({prefix + n: t for n, t in model.state_dict().items()}, source / "pytorch_model.bin")
    export_embedder(source, tmp_path / "out")
    np.testing.assert_allclose(Embedder(tmp_path / "out").embed(TEXTS), expected(model, "cls"), atol=TOLERANCE)


def test_positions_are_cut_and_texts_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = xlm_r()
    monkeypatch.setattr("memory_model.export.embedder.TOKEN_LIMIT", 9)
    export_embedder(save(model, tmp_path / "tiny", pooling="cls"), tmp_path / "out")
    graph = onnx.load(str(tmp_path / "out" / "embedder.onnx")).graph
    assert [9, 32] in [list(t.dims) for t in graph.initializer]
    assert [66, 32] not in [list(t.dims) for t in graph.initializer]
    np.testing.assert_allclose(Embedder(tmp_path / "out").embed(TEXTS), expected(model, "cls", 9), atol=TOLERANCE)


@pytest.mark.parametrize("make", [xlm_r, bert])
def test_int8_is_near_float32_in_any_company(make: object, tmp_path: Path) -> None:
    source = save(make(), tmp_path / "tiny", pooling="mean")  # type: ignore[operator]
    exact, rounded = (Embedder(export_embedder(source, tmp_path / p, p) and tmp_path / p) for p in ("float32", "int8"))
    vectors = rounded.embed(TEXTS)
    assert (exact.embed(TEXTS) * vectors).sum(axis=1).min() > 0.99  # 7 bits of weights of 32 inputs: 1e-3 to 1e-2
    np.testing.assert_allclose(vectors, np.concatenate([rounded.embed([text]) for text in TEXTS]), atol=TOLERANCE)
    assert rounded.config.precision == "int8"


def test_an_embedder_of_int8_stays_on_the_cpu(tmp_path: Path) -> None:
    chain = [("AzureExecutionProvider", {}), *CPU_ALONE]
    used = []
    for precision in ("float32", "int8"):
        export_embedder(save(bert(), tmp_path / "tiny", pooling="mean"), tmp_path / precision, precision)
        used.append(Embedder(tmp_path / precision, execution_providers=chain)._session.get_providers())
    assert used == [["AzureExecutionProvider", "CPUExecutionProvider"], ["CPUExecutionProvider"]]


def published_onnx(source: Path, folder: Path, output: str) -> Path:
    """BGE-M3's onnx/ folder: graph, weights, one constant in a file of its own, config and tokenizer."""
    (folder / "onnx").mkdir(parents=True)
    model = encoder_graph(read_encoder(source, "tiny"), "float32", 64).model()
    if output != "sentence_embedding":  # a graph without pooling: cut off behind the last Reshape
        node = [n for n in model.graph.node if n.op_type == "Reshape"][-1]
        shape = ["texts", "tokens", 32]
        model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape))
        last = list(model.graph.node).index(node)
        node.output[0] = output
        del model.graph.node[last + 1 :]
    constant = onnx.numpy_helper.from_array(np.ones(400, np.float32))
    onnx.external_data_helper.set_external_data(constant, "Constant_7_attr__value")
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["unread"], value=constant))
    place = folder / "onnx" / "model.onnx"
    onnx.save(model, place, save_as_external_data=True, location="model.onnx_data", size_threshold=1024)
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(source / name, folder / "onnx" / name)
    return folder


@pytest.mark.parametrize("output", ["sentence_embedding", "token_embeddings", "last_hidden_state"])
def test_a_published_graph_is_copied_with_its_external_data(output: str, tmp_path: Path) -> None:
    model = xlm_r()
    published = published_onnx(save(model, tmp_path / "tiny", pooling="cls"), tmp_path / "bge", output)
    config = export_embedder(published, tmp_path / "out")
    assert (config.name, config.pooling, config.dim) == ("bge", "cls", 32)
    assert (config.max_tokens, config.precision, config.source) == (64, "float32", "onnx/model.onnx")
    assert {"model.onnx_data", "Constant_7_attr__value"} <= {p.name for p in (tmp_path / "out").iterdir()}
    np.testing.assert_allclose(Embedder(tmp_path / "out").embed(TEXTS), expected(model, "cls"), atol=TOLERANCE)
    with pytest.raises(InvalidInput, match=r"copied as it is: int8 needs model\.safetensors"):
        export_embedder(published, tmp_path / "int8", "int8")


def change_tokenizer(folder: Path) -> None:
    tokenizer = unigram_tokenizer()
    tokenizer.add_tokens([f"word{n}" for n in range(300)])
    tokenizer.save(str(folder / "tokenizer.json"))


BAD = {
    "no config": ("bin", remove("config.json"), MissingFile, r"no config\.json"),
    "no shape": ("bin", lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), CorruptFile, "shape"),
    "architecture": ("bin", edit("config.json", model_type="gpt2"), InvalidInput, "'gpt2', supported: bert"),
    "positions": ("bin", edit("config.json", position_embedding_type="relative_key"), InvalidInput, "relative"),
    "damaged index": ("sharded", lambda f: (f / "model.safetensors.index.json").write_text("{}"), CorruptFile, "index"),
    "truncated": ("bin", cut("pytorch_model.bin", 0.99), CorruptFile, "truncated, damaged"),
    "more layers": ("bin", edit("config.json", num_hidden_layers=3), CorruptFile, r"no weight .*layer\.2"),
    "other tokenizer": ("bin", change_tokenizer, InvalidInput, "another model's tokenizer"),
    "no tokenizer": ("bin", remove("tokenizer.json"), MissingFile, r"no tokenizer\.json"),
    "max pooling": ("bin", lambda f: say_pooling(f, pooling_mode_max_tokens=True), InvalidInput, "mean or cls"),
    "dense": ("bin", lambda f: (f / "modules.json").write_text('[{"type": "m.Dense"}]'), InvalidInput, "Dense"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_exported_is_refused_at_once(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, damage, error, message = BAD[what]
    source = save(xlm_r(), tmp_path / "tiny", layout)
    damage(source)
    monkeypatch.setattr("memory_model.models.encoder.EncoderModel.read", None)
    with pytest.raises(error, match=message):
        export_embedder(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_published_graph_without_its_weights_is_refused(tmp_path: Path) -> None:
    published = published_onnx(save(xlm_r(), tmp_path / "tiny"), tmp_path / "bge", "token_embeddings")
    data = published / "onnx" / "model.onnx_data"
    cut("model.onnx_data", 0.99)(data.parent)
    with pytest.raises(CorruptFile, match=r"model\.onnx_data has"):
        export_embedder(published, tmp_path / "out")
    data.unlink()
    with pytest.raises(MissingFile, match=r"model\.onnx_data"):
        export_embedder(published, tmp_path / "out")
    (published / "onnx" / "model.onnx").write_bytes(b"garbage")
    with pytest.raises(CorruptFile, match="not an ONNX file"):
        export_embedder(published, tmp_path / "out")
