"""The decoder as one ONNX file of standard operators: prompt chunks and single steps, static caches, slots.

Letters: S tokens of this run, N rows of logits, D hidden, V vocabulary, H query heads, K KV heads,
G = H / K, d head dimension, h heads of one cache tensor, R rows of it.

Inputs:  token_ids, position_ids int64 [S]; output_rows int64 [N], which of the S tokens get logits;
         for every layout of `memory_model.cache_layout` a mask float32 [1 or h, S, R], 0 or -inf, and rows
         int64 [S], where the new tokens' keys and values go; the cache tensors float32 [h, R, d].
Outputs: logits float32 [N, V]; every cache tensor as `<name>_out`.

A cache's input and output are meant to be bound to the same memory: ScatterND then writes only the new
rows. R is free, so the caller binds just as many rows as it uses and attention costs no more than those.
Masks and positions come from the caller; nothing in the graph takes a row for a position.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from memory_model.cache_layout import TEXT, CacheLayout, CacheTensor, cache_layout, mask_name, rows_name
from memory_model.config import ModelConfig
from memory_model.errors import InvalidInput
from memory_model.export.graph import Graph
from memory_model.export.quantize import BLOCK, Quantized, quantize

if TYPE_CHECKING:
    from memory_model.nn.load import LoadedModel

PRECISIONS = ("float32", "int8", "int4")
Progress = Callable[[int, int], None]


def check_precision(precision: str) -> None:
    """Raise InvalidInput for weights that cannot be exported."""
    if precision not in PRECISIONS:
        raise InvalidInput(f"precision must be one of {PRECISIONS}, not {precision!r}")


def export_decoder(
    loaded: LoadedModel,
    path: str | Path,
    precision: str = "int4",
    capacity: int = 2048,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the decoder of `loaded` to `path` (weights in `<path>.data`) and return the files.

    precision: of the linear layers and the head. capacity: text rows, prefix included, that the rotary
    tables cover. progress: called with (layers done, layers). Raises InvalidInput.
    """
    weights = {name: tensor.detach().float().numpy() for name, tensor in loaded.model.state_dict().items()}
    graph = decoder_graph(weights, loaded.config, precision, capacity, progress)
    return graph.save(path, external=True)


def decoder_graph(
    weights: Mapping[str, np.ndarray],
    config: ModelConfig,
    precision: str = "float32",
    capacity: int = 2048,
    progress: Progress | None = None,
) -> Graph:
    """The graph of weights with Hugging Face Llama names (without `model.`); see `export_decoder`."""
    check_precision(precision)
    if capacity < config.memory.chunk_tokens:
        raise InvalidInput(
            f"capacity {capacity} does not hold a chunk of {config.memory.chunk_tokens} tokens"
        )
    return _Exporter(weights, config, precision, capacity).build(progress)


@dataclass(frozen=True)
class _Shared:
    """Tensors that every layer reads: the rotation of each token, masks and scatter indices by (layout, h)."""

    rotation: str
    masks: Mapping[int, str]
    indices: Mapping[tuple[int, int], str]


class _Exporter:
    """Lays the nodes; one instance makes one graph."""

    def __init__(
        self, weights: Mapping[str, np.ndarray], config: ModelConfig, precision: str, capacity: int
    ) -> None:
        self.weights = weights
        self.config = config
        self.precision = precision
        self.capacity = capacity
        self.layout: CacheLayout = cache_layout(config)
        self.g = Graph(config.name)
        self.g.metadata = {
            "config": json.dumps(config.to_dict(), sort_keys=True),
            "precision": precision,
            "capacity": str(capacity),
        }

    def build(self, progress: Progress | None) -> Graph:
        g, config = self.g, self.config
        ids = g.input("token_ids", np.int64, ["S"])
        positions = g.input("position_ids", np.int64, ["S"])
        wanted = g.input("output_rows", np.int64, ["N"])
        shared = self._shared(positions)
        x = self._embed(ids)
        for layer in range(config.layers):
            x = self._layer(layer, x, shared)
            if progress is not None:
                progress(layer + 1, config.layers)
        x = self._norm(g.op("Gather", x, wanted, axis=0), "norm")
        g.output("logits", np.float32, ["N", config.vocabulary])
        self._head(x, "logits")
        return g

    def _shared(self, positions: str) -> _Shared:
        g = self.g
        masks, indices = {}, {}
        for layout in ([TEXT] if self.layout.has_text else []) + list(range(len(self.layout.layouts))):
            tokens = () if layout == TEXT else self.layout.layouts[layout]
            # Heads that keep different numbers of tokens need masks of their own.
            lead = 1 if len(set(tokens)) <= 1 else len(tokens)
            mask = g.input(mask_name(layout), np.float32, [lead, "S", f"R_{layout + 1}"])
            # Queries of a group are rows of one matrix product, group by group, so the mask repeats.
            masks[layout] = g.op("Concat", *[mask] * self.config.group, axis=1)
            rows = g.input(rows_name(layout), np.int64, ["S"])
            column = g.op("Unsqueeze", rows, g.constant([0, 2]))
            for heads in sorted({len(t.heads) for t in self.layout.tensors if t.layout == layout}):
                number = g.constant(np.arange(heads, dtype=np.int64).reshape(-1, 1, 1))
                zero = g.op("Mul", column, g.constant(np.zeros((1, 1, 1), np.int64)))
                one = g.op("Add", number, zero)  # [h, S, 1]: the head's number for every token
                other = g.op("Add", column, g.constant(np.zeros((heads, 1, 1), np.int64)))
                indices[layout, heads] = g.op("Concat", one, other, axis=2)
        return _Shared(self._rotation(positions), masks, indices)

    def _rotation(self, positions: str) -> str:
        """[S, d, d]: the rotary turn of each token as a matrix, so that a layer rotates by one MatMul."""
        g, d = self.g, self.config.head_dim
        frequency = 1.0 / self.config.rope_base ** (np.arange(0, d, 2, dtype=np.float64) / d)
        angle = np.arange(self.capacity + self.config.memory.reference_tokens)[:, None] * frequency
        angle = np.concatenate((angle, angle), axis=1)[:, None, :]
        cos = g.op("Gather", g.constant(np.cos(angle).astype(np.float32)), positions)
        sin = g.op("Gather", g.constant(np.sin(angle).astype(np.float32)), positions)
        turn = np.zeros((d, d), np.float32)
        half = np.arange(d // 2)
        turn[half + d // 2, half], turn[half, half + d // 2] = -1.0, 1.0
        straight = g.op("Mul", g.constant(np.eye(d, dtype=np.float32)), cos)
        return g.op("Add", straight, g.op("Mul", g.constant(turn), sin))

    def _embed(self, ids: str) -> str:
        g, table = self.g, self.weights["embed_tokens.weight"]
        if self.precision == "float32":
            return g.op("Gather", g.constant(table, "embed_tokens"), ids, axis=0)
        # One row is read for each token, so the table stays int8 whatever the precision of the layers.
        q = quantize(table.T, 8)
        blocks = table.shape[1] // BLOCK
        codes = g.op("Gather", g.constant(np.ascontiguousarray(q.codes.T), "embed_tokens"), ids, axis=0)
        scales = g.op("Gather", g.constant(q.scales.T.reshape(-1, blocks, 1)), ids, axis=0)
        codes = g.op("Reshape", g.op("Cast", codes, to=TensorProto.FLOAT), g.constant([-1, blocks, BLOCK]))
        return g.op("Reshape", g.op("Mul", codes, scales), g.constant([-1, table.shape[1]]))

    def _head(self, x: str, out: str) -> None:
        table = self.weights.get("lm_head.weight", self.weights["embed_tokens.weight"])
        if self.precision == "float32":
            # Gemm reads the table as it lies, so a tied one is stored once.
            self.g.op("Gemm", x, self.g.constant(table, "lm_head"), out=out, transB=1)
        else:
            self._linear(x, table.T, "lm_head", out)

    def _layer(self, layer: int, x: str, shared: _Shared) -> str:
        g, at = self.g, f"layers.{layer}"
        normed = self._norm(x, f"{at}.input_layernorm")
        x = g.op("Add", x, self._attention(layer, normed, shared))
        normed = self._norm(x, f"{at}.post_attention_layernorm")
        gate = self._linear(normed, self.weights[f"{at}.mlp.gate_proj.weight"].T, f"{at}.gate")
        up = self._linear(normed, self.weights[f"{at}.mlp.up_proj.weight"].T, f"{at}.up")
        inner = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)
        return g.op("Add", x, self._linear(inner, self.weights[f"{at}.mlp.down_proj.weight"].T, f"{at}.down"))

    def _attention(self, layer: int, x: str, shared: _Shared) -> str:
        g, config, d = self.g, self.config, self.config.head_dim
        tensors = self.layout.of(layer)
        order = np.asarray(self.layout.head_order(layer))
        queries = (order[:, None] * config.group + np.arange(config.group)).reshape(-1)
        weight, bias = self._projections(layer, queries, order)
        qkv = self._linear(x, weight, f"layers.{layer}.qkv")
        if bias is not None:
            qkv = g.op("Add", qkv, g.constant(bias))
        qkv = g.op("Reshape", qkv, g.constant([-1, config.query_heads + 2 * config.kv_heads, d]))
        turning, v = g.ops(
            "Split", qkv, g.constant([config.query_heads + config.kv_heads, config.kv_heads]), out=2, axis=1
        )
        turned = g.op("Transpose", g.op("MatMul", turning, shared.rotation), perm=[1, 0, 2])
        v = g.op("Transpose", v, perm=[1, 0, 2])
        counts = [len(t.heads) for t in tensors]
        parts = [n * config.group for n in counts] + counts
        pieces = g.ops("Split", turned, g.constant(parts), out=len(parts), axis=0)
        values = [v] if len(tensors) == 1 else g.ops("Split", v, g.constant(counts), out=len(counts), axis=0)
        read = [
            self._read(tensor, pieces[i], pieces[len(tensors) + i], values[i], shared)
            for i, tensor in enumerate(tensors)
        ]
        joined = read[0] if len(read) == 1 else g.op("Concat", *read, axis=0)
        joined = g.op("Reshape", g.op("Transpose", joined, perm=[1, 0, 2]), g.constant([-1, config.hidden]))
        columns = (queries[:, None] * d + np.arange(d)).reshape(-1)
        out = self.weights[f"layers.{layer}.self_attn.o_proj.weight"][:, columns]
        return self._linear(joined, out.T, f"layers.{layer}.o")

    def _projections(
        self, layer: int, queries: np.ndarray, order: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """q, k and v as one weight [D, (H + 2K) d], heads in the order of the cache tensors.

        The softmax's 1 / sqrt(d) goes into the query rows.
        """
        d, at = self.config.head_dim, f"layers.{layer}.self_attn"
        weights, biases = [], []
        for part, heads, scale in (("q", queries, d**-0.5), ("k", order, 1.0), ("v", order, 1.0)):
            rows = (heads[:, None] * d + np.arange(d)).reshape(-1)
            weights.append(self.weights[f"{at}.{part}_proj.weight"][rows] * np.float32(scale))
            if self.config.attention_bias:
                biases.append(self.weights[f"{at}.{part}_proj.bias"][rows] * np.float32(scale))
        return np.concatenate(weights).T, np.concatenate(biases) if biases else None

    def _read(self, tensor: CacheTensor, q: str, k: str, v: str, shared: _Shared) -> str:
        """Write k, v [h, S, d] into the tensor's caches and attend with q [h G, S, d]; returns [h G, S, d]."""
        g, d, heads = self.g, self.config.head_dim, len(tensor.heads)
        caches = []
        for name, new in ((tensor.keys, k), (tensor.values, v)):
            shape: list[int | str] = [heads, f"R_{tensor.layout + 1}", d]
            cache = g.input(name, np.float32, shape)
            g.output(f"{name}_out", np.float32, shape)
            index = shared.indices[tensor.layout, heads]
            caches.append(g.op("ScatterND", cache, index, new, out=f"{name}_out"))
        q = g.op("Reshape", q, g.constant([heads, -1, d]))
        scores = g.op("MatMul", q, g.op("Transpose", caches[0], perm=[0, 2, 1]))
        weights = g.op("Softmax", g.op("Add", scores, shared.masks[tensor.layout]), axis=-1)
        read = g.op("MatMul", weights, caches[1])
        return g.op("Reshape", read, g.constant([heads * self.config.group, -1, d]))

    def _norm(self, x: str, name: str) -> str:
        """RMSNorm in float32, spelled as the runtime's fusion expects it."""
        g = self.g
        mean = g.op("ReduceMean", g.op("Pow", x, g.constant(2.0)), g.constant([-1]), keepdims=1)
        root = g.op("Sqrt", g.op("Add", mean, g.constant(float(self.config.norm_epsilon))))
        return g.op("Mul", g.op("Div", x, root), g.constant(self.weights[f"{name}.weight"]))

    def _linear(self, x: str, weight: np.ndarray, name: str, out: str = "") -> str:
        """Tensor x [S, inputs] times weight [inputs, outputs] in the export's precision."""
        if self.precision == "float32":
            return self.g.op("MatMul", x, self.g.constant(weight, name), out=out)
        return self.g.op(
            "MatMul",
            x,
            self._dequantize(quantize(weight, 4 if self.precision == "int4" else 8), name),
            out=out,
        )

    def _dequantize(self, q: Quantized, name: str) -> str:
        codes = self.g.constant_int4(q.codes, name) if q.bits == 4 else self.g.constant(q.codes, name)
        return self.g.op(
            "DequantizeLinear", codes, self.g.constant(q.scales, f"{name}.scale"), axis=0, block_size=BLOCK
        )
