"""A random XLM-R of BGE-M3's full size (568 million weights) is exported, indexes a service, and searches it.

In each published layout: safetensors, pytorch_model.bin, and a graph with its weights beside it, which is copied as it
is; the others search as int8. Its vectors mean nothing, but equal texts have equal vectors, so a document's own text
must find it first. Each needs 8 GB of disk, 6 GB of memory, and some minutes.
"""

from pathlib import Path

import onnx
import pytest
import torch
from transformers import XLMRobertaConfig, XLMRobertaModel

from edge_client.model import EdgeModel
from memory3.codec.codec import ExactCodec
from memory3.runtime.embedder import MODEL, Embedder
from memory_model.export.bundle import export_bundle
from memory_model.export.embedder import export_embedder
from memory_service.write.model_encoder import ModelEncoder
from tests.edge_client.tiny_bundle import format_of, tiny_loaded
from tests.memory_model.encoder_folders import save
from tests.memory_service.running import document, running

DIM = 1024
CITIES = ["Oslo", "Rome", "Lima", "Cairo", "Quito", "Paris", "Bern", "Riga", "Kyiv", "Accra"]


def bge_m3_sized(folder: Path, layout: str) -> Path:
    """The folder of such a model: safetensors in several files, one pytorch_model.bin, or onnx/model.onnx."""
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        hidden_size=DIM,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        vocab_size=250_002,
        max_position_embeddings=8194,
        type_vocab_size=1,
        pad_token_id=1,
        initializer_range=0.05,
    )
    save(XLMRobertaModel(config), folder, "bin" if layout == "bin" else "safetensors", pooling="cls")
    if layout == "onnx":
        export_embedder(folder, folder / "onnx")
        graph = onnx.load(folder / "onnx" / MODEL, load_external_data=False)
        del graph.metadata_props[:]  # a published graph names no embedder_id
        onnx.save(graph, folder / "onnx" / "model.onnx")
        for weights in folder.glob("model*.safetensors*"):
            weights.unlink()
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layout", ["safetensors", "bin", "onnx"])
def test_the_full_size_is_exported_indexes_a_service_and_finds_documents_by_their_text(
    layout: str, tmp_path: Path
) -> None:
    source, precision = bge_m3_sized(tmp_path / "bge-m3-random", layout), "float32" if layout == "onnx" else "int8"
    config = export_embedder(source, tmp_path / "float32")
    loaded = tiny_loaded()
    ExactCodec(loaded.config.head_dim).save(tmp_path / "codec.npz")
    bundle = export_bundle(
        loaded,
        tmp_path / "bundle",
        "float32",
        codec=tmp_path / "codec.npz",
        embedder=source,
        embedder_precision=precision,
        quiet=True,
    )
    assert (config.dim, config.max_tokens, config.pooling) == (DIM, 512, "cls")
    assert config.embedder_id == bundle.manifest.embedder_id
    whole = sum(f.stat().st_size for f in (tmp_path / "float32").iterdir())
    shipped = sum(e.bytes for name, e in bundle.manifest.files.items() if name.startswith("embedder"))
    assert whole > 4 * 550e6
    assert shipped < (0.26 if precision == "int8" else 1.01) * whole

    exact = Embedder(tmp_path / "float32")
    with (
        running(tmp_path / "store", ModelEncoder(loaded, exact, format_of(loaded))) as (client, server),
        EdgeModel.open(bundle.folder, f"127.0.0.1:{server.port}", deadline_s=60.0) as model,
    ):
        documents = [document(c.lower(), f"Code {37 * n}.", title=c) for n, c in enumerate(CITIES)]
        answers = client.ingest("default", *documents)
        assert sum(a.WhichOneof("message") == "acknowledged" for a in answers) == len(CITIES)
        assert model.engine.recaller is not None
        rounded = model.engine.recaller.embedder
        for number, city in enumerate(CITIES):
            text = f"{city}\nCode {37 * number}."
            (hits,) = model.engine.recaller.client.retrieve(rounded.embed([text]), k=2).hits
            (recall,) = model.engine.recaller.recall([text], deadline_s=60)
            assert [hits[0].title, recall.read[0].title] == [city, city]
            assert hits[0].score > hits[1].score + 0.01, "or rounding decides"
