"""The embedder equals transformers, for BERT and for XLM-R in both of BGE-M3's layouts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel, XLMRobertaConfig, XLMRobertaModel

from memory_model.embedder import Embedder, EmbedderConfig
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.export.embedder import encoder_graph, export_embedder, read_encoder
from tests.edge_client.tiny_bundle import tiny_bert

TEXTS = ["The capital of Norway is Oslo.", "x", "", "a longer text, " * 3, "Grüße 🎉", "Oslo"]


def xlm_r_tokenizer() -> Tokenizer:
    """A byte tokenizer with XLM-R's special ids: <s> 0, <pad> 1, </s> 2."""
    from tokenizers import decoders, models, pre_tokenizers, processors

    tokens = ["<s>", "<pad>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


@pytest.fixture(scope="module")
def xlm_r(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BGE-M3's architecture, randomly initialised and tiny, written by transformers as a release is."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("xlm-r")
    config = XLMRobertaConfig(
        vocab_size=260, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=66, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5, initializer_range=0.3,
    )  # fmt: skip
    XLMRobertaModel(config).eval().save_pretrained(folder, safe_serialization=True)
    xlm_r_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def expected(folder: Path, model: torch.nn.Module, pooling: str) -> np.ndarray:
    """One text at a time, without padding: what transformers and the pooling's definition give."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(64)
    rows = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            hidden = model(input_ids=ids).last_hidden_state[0]
        rows.append(hidden[0] if pooling == "cls" else hidden.mean(0))
    vectors = torch.stack(rows)
    return (vectors / vectors.norm(dim=1, keepdim=True)).numpy()


def test_bert_with_mean_pooling_equals_transformers(tmp_path: Path) -> None:
    source = tiny_bert(tmp_path / "bert")
    export_embedder(source, tmp_path / "out")
    embedder = Embedder(tmp_path / "out")
    config = BertConfig(**json.loads((source / "config.json").read_text()))
    model = BertModel.from_pretrained(source, config=config, add_pooling_layer=False).eval()
    np.testing.assert_allclose(embedder.embed(TEXTS), expected(source, model, "mean"), atol=2e-6)
    assert embedder.config == EmbedderConfig("bert", "mean", True, 64, 16)


def test_xlm_r_safetensors_with_cls_pooling_equal_transformers(xlm_r: Path, tmp_path: Path) -> None:
    export_embedder(xlm_r, tmp_path)
    embedder = Embedder(tmp_path)
    model = XLMRobertaModel.from_pretrained(xlm_r).eval()
    np.testing.assert_allclose(embedder.embed(TEXTS), expected(xlm_r, model, "cls"), atol=2e-6)
    assert (embedder.config.pooling, embedder.config.max_tokens, embedder.dim) == ("cls", 64, 32)


@pytest.mark.parametrize("output", ["sentence_embedding", "token_embeddings"])
def test_bge_m3s_published_onnx_layout_equals_transformers(xlm_r: Path, tmp_path: Path, output: str) -> None:
    """onnx/model.onnx with its weights in onnx/model.onnx_data, tokenizer beside it or one folder up."""
    published = tmp_path / "published"
    (published / "onnx").mkdir(parents=True)
    model = encoder_graph(read_encoder(xlm_r, "tiny")).model()
    if output == "token_embeddings":  # a graph without pooling: cut off behind the last Reshape
        node = [n for n in model.graph.node if n.op_type == "Reshape"][-1]
        model.graph.output[0].CopyFrom(
            onnx.helper.make_tensor_value_info(
                node.output[0], onnx.TensorProto.FLOAT, ["texts", "tokens", 32]
            )
        )
        model.graph.output[0].name = node.output[0] = "token_embeddings"
        kept = [n for n in model.graph.node if n is node or node.output[0] not in n.input]
        del model.graph.node[:]
        model.graph.node.extend(kept[: kept.index(node) + 1])
    onnx.save(
        model, published / "onnx" / "model.onnx", save_as_external_data=True, location="model.onnx_data",
        size_threshold=1024,
    )  # fmt: skip
    shutil.copyfile(xlm_r / "tokenizer.json", published / "onnx" / "tokenizer.json")
    want = expected(xlm_r, XLMRobertaModel.from_pretrained(xlm_r).eval(), "cls")
    embedder = Embedder(published)
    np.testing.assert_allclose(embedder.embed(TEXTS), want, atol=2e-6)
    assert (embedder.dim, embedder.config.pooling, embedder.name) == (32, "cls", "bge-m3")
    assert [p.name for p in embedder.files.weights] == ["model.onnx_data"]
    export_embedder(published, tmp_path / "copied")
    copied = Embedder(tmp_path / "copied")
    np.testing.assert_array_equal(copied.embed(TEXTS), embedder.embed(TEXTS))
    assert copied.embedder_id == embedder.embedder_id


def test_minilm_ranks_the_right_sentence_first(tmp_path: Path) -> None:
    export_embedder("minilm", tmp_path)
    embedder = Embedder(tmp_path)
    question, *references = embedder.embed(
        [
            "Which city is the capital of Norway?",
            "Oslo is Norway's capital.",
            "Iron melts at 1538 °C.",
            "Bergen lies west.",
        ]
    )
    assert embedder.dim == 384
    assert np.argmax(references @ question) == 0


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    folder = tmp_path_factory.mktemp("tiny")
    export_embedder(tiny_bert(folder / "bert"), folder / "out")
    return Embedder(folder / "out")


def test_a_text_has_the_same_vector_in_any_company(embedder: Embedder) -> None:
    together = embedder.embed(TEXTS, batch_size=4)
    alone = np.concatenate([embedder.embed([t]) for t in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert embedder.embed([]).shape == (0, 16)


@given(st.lists(st.text(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_text_has_a_finite_vector_of_unit_length(embedder: Embedder, texts: list[str]) -> None:
    vectors = embedder.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.ones(len(texts)), atol=1e-5)


def test_lone_surrogates_and_huge_texts_are_embedded(embedder: Embedder) -> None:
    assert np.isfinite(embedder.embed(["\ud800 x", "word " * 1_000_000])).all()


@pytest.mark.parametrize("texts", ["a text", [1], [None], [b"bytes"]])
def test_what_is_no_list_of_texts_is_refused(embedder: Embedder, texts: object) -> None:
    with pytest.raises(InvalidInput):
        embedder.embed(texts)  # type: ignore[arg-type]


def test_the_identity_follows_every_file(embedder: Embedder, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(embedder.files.model.parent, tmp_path / "copy"))
    assert Embedder(folder).embedder_id == embedder.embedder_id
    config = json.loads((folder / "embedder.json").read_text())
    (folder / "embedder.json").write_text(json.dumps({**config, "max_tokens": 8}))
    assert Embedder(folder).embedder_id != embedder.embedder_id


def test_missing_and_damaged_files_are_named(embedder: Embedder, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="memory-model export"):
        Embedder(tmp_path / "nowhere")
    for name in ("embedder.onnx", "embedder_tokenizer.json", "embedder.json"):
        folder = Path(shutil.copytree(embedder.files.model.parent, tmp_path / name))
        (folder / name).write_bytes((folder / name).read_bytes()[:50])
        with pytest.raises(CorruptFile, match=name):
            Embedder(folder)
    folder = Path(shutil.copytree(embedder.files.model.parent, tmp_path / "no tokenizer"))
    (folder / "embedder_tokenizer.json").unlink()
    with pytest.raises(MissingFile, match=r"tokenizer\.json"):
        Embedder(folder)


def test_what_is_no_bert_is_refused_by_the_export(tmp_path: Path) -> None:
    source = tiny_bert(tmp_path / "bert")
    (source / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(CorruptFile):
        export_embedder(source, tmp_path / "out")
    source = tiny_bert(tmp_path / "gpt")
    (source / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(InvalidInput, match="gpt2"):
        export_embedder(source, tmp_path / "out")
    with pytest.raises(MissingFile):
        export_embedder(tmp_path / "nowhere", tmp_path / "out")
