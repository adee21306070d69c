"""The decoder as one ONNX file of standard operators: prompt chunks and single steps, static caches, slots.

Letters: S tokens of this run, N rows of logits, D hidden, V vocabulary, H query heads, K KV heads,
G = H / K, d head dimension, h heads of one cache tensor, R rows of it.

Inputs:  token_ids, position_ids int64 [S]; output_rows int64 [N], which of the S tokens get logits;
         for every layout of `memory_model.cache_layout` a mask float32 [1 or h, 1, S, R], 0 or -inf, and rows
         int64 [S], where the new tokens' keys and values go; the cache tensors [h, 1, R, d], float32 or, where
         the graph computes with halves, float16.
Outputs: logits float32 [N, V]; every cache tensor as `<name>_out`.

A cache's input and output are meant to be bound to the same memory: ScatterND then writes only the new
rows. R is free, so the caller binds just as many rows as it uses and attention costs no more than those.
Masks and positions come from the caller; nothing in the graph takes a row for a position.

The query heads of a group have a dimension of their own, over which keys and values are broadcast: for
one token every product is then a matrix by a vector, which reads the cache as it lies. As rows of one
product they would make the kernel copy the cache first (2 times slower).
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
from memory_model.export.weights import Precision, Rounding, Weights

if TYPE_CHECKING:
    from memory_model.nn.load import LoadedModel

Progress = Callable[[int, int], None]


def export_decoder(
    loaded: LoadedModel,
    path: str | Path,
    precision: str | Precision = "int4",
    capacity: int = 2048,
    progress: Progress | None = None,
    rounding: Rounding | None = None,
) -> list[Path]:
    """Write the decoder of `loaded` to `path` (weights in `<path>.data`) and return the files.

    precision: of the weights. capacity: text rows, prefix included, that the rotary tables cover.
    progress: called with (layers done, layers). rounding: how weights become codes, by default to the
    nearest. Raises InvalidInput.
    """
    weights = {name: tensor.detach().float().numpy() for name, tensor in loaded.model.state_dict().items()}
    graph = decoder_graph(weights, loaded.config, precision, capacity, progress, rounding)
    return graph.save(path, external=True)


def decoder_graph(
    weights: Mapping[str, np.ndarray],
    config: ModelConfig,
    precision: str | Precision = "float32",
    capacity: int = 2048,
    progress: Progress | None = None,
    rounding: Rounding | None = None,
) -> Graph:
    """The graph of weights with Hugging Face Llama names (without `model.`); see `export_decoder`."""
    if isinstance(precision, str):
        precision = Precision(precision)
    if capacity < config.memory.chunk_tokens:
        raise InvalidInput(
            f"capacity {capacity} does not hold a chunk of {config.memory.chunk_tokens} tokens"
        )
    return _Exporter(weights, config, precision, capacity, rounding).build(progress)


@dataclass(frozen=True)
class _Shared:
    """Tensors that every layer reads: the rotation of each token, masks and scatter indices by (layout, h)."""

    rotation: str
    masks: Mapping[int, str]
    indices: Mapping[tuple[int, int], str]


class _Exporter:
    """Lays the nodes; one instance makes one graph."""

    def __init__(
        self, weights: Mapping[str, np.ndarray], config: ModelConfig, precision: Precision, capacity: int,
        rounding: Rounding | None,
    ) -> None:  # fmt: skip
        self.weights = weights
        self.config = config
        self.capacity = capacity
        self.layout: CacheLayout = cache_layout(config)
        self.g = Graph(config.name)
        self.g.metadata = {
            "config": json.dumps(config.to_dict(), sort_keys=True),
            "precision": precision.label,
            "compute": precision.compute,
            "capacity": str(capacity),
        }
        self.lay = Weights(self.g, precision, rounding)

    def build(self, progress: Progress | None) -> Graph:
        g, config = self.g, self.config
        ids = g.input("token_ids", np.int64, ["S"])
        positions = g.input("position_ids", np.int64, ["S"])
        wanted = g.input("output_rows", np.int64, ["N"])
        shared = self._shared(positions)
        own_head = self.weights.get("lm_head.weight")
        x, head = self.lay.table(ids, self.weights["embed_tokens.weight"], tied=own_head is None)
        for layer in range(config.layers):
            x = self._layer(layer, x, shared)
            if progress is not None:
                progress(layer + 1, config.layers)
        x = self._norm(g.op("Gather", x, wanted, axis=0), "norm")
        g.output("logits", np.float32, ["N", config.vocabulary])
        if head is not None:
            head(x, "logits")
        else:
            assert own_head is not None
            self.lay.head(x, own_head, "logits")
        return g

    def _shared(self, positions: str) -> _Shared:
        g = self.g
        masks, indices = {}, {}
        for layout in ([TEXT] if self.layout.has_text else []) + list(range(len(self.layout.layouts))):
            tokens = () if layout == TEXT else self.layout.layouts[layout]
            # Heads that keep different numbers of tokens need masks of their own.
            lead = 1 if len(set(tokens)) <= 1 else len(tokens)
            masks[layout] = g.input(mask_name(layout), np.float32, [lead, 1, "S", f"R_{layout + 1}"])
            rows = g.op("Unsqueeze", g.input(rows_name(layout), np.int64, ["S"]), g.constant([0, 1, 3]))
            for heads in sorted({len(t.heads) for t in self.layout.tensors if t.layout == layout}):
                # [h, 1, S, 3]: for every token the head's number, 0 and the row.
                number = g.constant(np.arange(heads, dtype=np.int64).reshape(-1, 1, 1, 1))
                head = g.op("Add", g.op("Mul", rows, g.constant(0)), number)
                zero = g.op("Mul", head, g.constant(0))
                index = g.op("Concat", head, zero, g.op("Add", zero, rows), axis=3)
                indices[layout, heads] = index
        return _Shared(self._rotation(positions), masks, indices)

    def _rotation(self, positions: str) -> str:
        """[S, 1, d, d]: the rotary turn of each token as a matrix, so that a layer rotates by one MatMul."""
        g, d = self.g, self.config.head_dim
        frequency = 1.0 / self.config.rope_base ** (np.arange(0, d, 2, dtype=np.float64) / d)
        angle = np.arange(self.capacity + self.config.memory.reference_tokens)[:, None] * frequency
        angle = np.concatenate((angle, angle), axis=1)[:, None, None, :]
        cos = g.op("Gather", g.constant(np.cos(angle).astype(np.float32)), positions)
        sin = g.op("Gather", g.constant(np.sin(angle).astype(np.float32)), positions)
        turn = np.zeros((d, d), np.float32)
        half = np.arange(d // 2)
        turn[half + d // 2, half], turn[half, half + d // 2] = -1.0, 1.0
        straight = g.op("Mul", g.constant(np.eye(d, dtype=np.float32)), cos)
        return self._narrow(g.op("Add", straight, g.op("Mul", g.constant(turn), sin)))

    def _layer(self, layer: int, x: str, shared: _Shared) -> str:
        g, at = self.g, f"layers.{layer}"
        normed = self._norm(x, f"{at}.input_layernorm")
        x = g.op("Add", x, self._wide(self._attention(layer, normed, shared)))
        normed = self._norm(x, f"{at}.post_attention_layernorm")
        both = [self.weights[f"{at}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
        both_out = self.lay.linear(normed, np.concatenate(both).T, f"{at}.gate_up")
        gate, up = g.ops("Split", both_out, out=2, axis=1, num_outputs=2)
        inner = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)
        down = self.lay.linear(inner, self.weights[f"{at}.mlp.down_proj.weight"].T, f"{at}.down")
        return g.op("Add", x, self._wide(down))

    def _attention(self, layer: int, x: str, shared: _Shared) -> str:
        g, config, d = self.g, self.config, self.config.head_dim
        tensors = self.layout.of(layer)
        order = np.asarray(self.layout.head_order(layer))
        queries = order[:, None] * config.group + np.arange(config.group)
        weight, bias = self._projections(layer, queries, order)
        qkv = self.lay.linear(x, weight, f"layers.{layer}.qkv")
        if bias is not None:
            qkv = g.op("Add", qkv, g.constant(bias.astype(self.lay.dtype)))
        kv, turned = config.kv_heads, config.query_heads + config.kv_heads
        qkv = g.op("Reshape", qkv, g.constant([-1, 1, turned + kv, d]))
        turning, v = g.ops("Split", qkv, g.constant([turned, kv]), out=2, axis=2)
        qk = g.op(
            "Reshape", g.op("MatMul", turning, shared.rotation), g.constant([-1, kv, config.group + 1, d])
        )
        qk = g.op("Transpose", qk, perm=[1, 2, 0, 3])  # [K, G + 1, S, d]
        v = g.op("Transpose", v, perm=[2, 1, 0, 3])  # [K, 1, S, d]
        counts = [len(t.heads) for t in tensors]
        qks, values = [qk], [v]
        if len(tensors) > 1:
            qks, values = (
                g.ops("Split", both, g.constant(counts), out=len(counts), axis=0) for both in (qk, v)
            )
        read = [self._read(*given, shared) for given in zip(tensors, qks, values, strict=True)]
        joined = read[0] if len(read) == 1 else g.op("Concat", *read, axis=0)
        joined = g.op(
            "Reshape", g.op("Transpose", joined, perm=[2, 0, 1, 3]), g.constant([-1, config.hidden])
        )
        columns = (queries.reshape(-1, 1) * d + np.arange(d)).reshape(-1)
        out = self.weights[f"layers.{layer}.self_attn.o_proj.weight"][:, columns]
        return self.lay.linear(joined, out.T, f"layers.{layer}.o")

    def _projections(
        self, layer: int, queries: np.ndarray, order: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """q, k and v as one weight [D, (H + 2K) d]: for each KV head its queries and its key, then all values.

        queries: [K, G] query heads. The softmax's 1 / sqrt(d) goes into the query columns.
        """
        d, at = self.config.head_dim, f"layers.{layer}.self_attn"
        weights, biases = [], []

        def take(part: str, heads: np.ndarray, scale: float) -> None:
            rows = (np.atleast_1d(heads)[:, None] * d + np.arange(d)).reshape(-1)
            weights.append(self.weights[f"{at}.{part}_proj.weight"][rows] * np.float32(scale))
            if self.config.attention_bias:
                biases.append(self.weights[f"{at}.{part}_proj.bias"][rows] * np.float32(scale))

        for group, key in zip(queries, order, strict=True):
            take("q", group, d**-0.5)
            take("k", key, 1.0)
        take("v", order, 1.0)
        return np.concatenate(weights).T, np.concatenate(biases) if biases else None

    def _read(self, tensor: CacheTensor, qk: str, v: str, shared: _Shared) -> str:
        """Write k, v [h, 1, S, d] into the tensor's caches and attend with q [h, G, S, d]; returns [h, G, S, d].

        qk: q and k along the second dimension.
        """
        g, heads = self.g, len(tensor.heads)
        q, k = g.ops("Split", qk, g.constant([self.config.group, 1]), out=2, axis=1)
        caches = []
        for name, new in ((tensor.keys, k), (tensor.values, v)):
            shape: list[int | str] = [heads, 1, f"R_{tensor.layout + 1}", self.config.head_dim]
            cache = g.input(name, self.lay.dtype.type, shape)
            g.output(f"{name}_out", self.lay.dtype.type, shape)
            index = shared.indices[tensor.layout, heads]
            caches.append(g.op("ScatterND", cache, index, new, out=f"{name}_out"))
        scores = self._wide(g.op("MatMul", q, g.op("Transpose", caches[0], perm=[0, 1, 3, 2])))
        weights = g.op("Softmax", g.op("Add", scores, shared.masks[tensor.layout]), axis=-1)
        return g.op("MatMul", self._narrow(weights), caches[1])

    def _norm(self, x: str, name: str) -> str:
        """RMSNorm in float32, spelled as the runtime's fusion expects it."""
        g = self.g
        mean = g.op("ReduceMean", g.op("Pow", x, g.constant(2.0)), g.constant([-1]), keepdims=1)
        root = g.op("Sqrt", g.op("Add", mean, g.constant(float(self.config.norm_epsilon))))
        return self._narrow(g.op("Mul", g.op("Div", x, root), g.constant(self.weights[f"{name}.weight"])))

    def _narrow(self, x: str) -> str:
        """Tensor x float32 in the type that the graph computes with."""
        return x if self.lay.dtype == np.float32 else self.g.op("Cast", x, to=self.lay.kind)

    def _wide(self, x: str) -> str:
        """Tensor x in float32: sums over layers, norms and softmax need it."""
        return x if self.lay.dtype == np.float32 else self.g.op("Cast", x, to=TensorProto.FLOAT)
