"""The decoder as ONNX: prompt chunks and single steps, static caches, memory slots; in two variants.

`standard` (`decoder.onnx`) holds standard operators only, for every runtime. `fused` (`decoder.cpu.onnx`) has ONNX
Runtime's own operators for attention and for sum + norm. Both read the same weights file (decision 0011).

Letters: B sequences, S tokens of each in this run, N rows of logits, D hidden, V vocabulary, H query heads, K KV
heads, G = H / K, d head dimension, h heads of one cache tensor, R rows of it, T text rows that are seen, P positions.

Inputs:  token_ids, position_ids int64 [B, S], positions that follow one another; output_rows int64 [N], which of the
         B S tokens get logits; rotary_cos, rotary_sin float32 [P, d / 2], of every position, with P at least the rows
         of the largest cache; the cache tensors [B, h, R, d], float32 or, where the graph computes with halves,
         float16; for every layout of `memory3.runtime.cache_layout` the row int64 [B] of each sequence's first new
         token, and a mask float32 [B, 1 or h, slots] over the memory slots, 0 or -inf.
         `standard` only: batch_ids int64 [B], 0 to B - 1; columns int64 [T], 0 to T - 1.
Outputs: logits float32 [N, V]; every cache tensor as `<name>_out`; for every layer with memory heads
         `memory_queries_<layer>`, which a run need not request: of every token first the queries of these heads,
         [h G d] numbers divided by sqrt(d), before the rotary embedding (then keys and values, which are not for use).

A cache's input and output are bound to the same memory. A token sees the rows up to its own, and of the slots what the
mask leaves; the mask of a sequence without memory, whose text is there, is zero. The fused variant reads several
tokens of one sequence, or one token of several.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from memory3.config import ModelConfig
from memory3.files.bundle import WRITER_FILE
from memory3.runtime.cache_layout import CacheTensor, cache_layout, fused_path, projection_rows
from memory_model.export.attention import CONTRIB, FUSED_MULTIPLE, FusedAttention, StandardAttention, normed
from memory_model.export.graph import ExternalData, Graph, save_together
from memory_model.export.weights import Precision, WeightNodes
from memory_model.export.writer import WritingAttention, mlp_precision, writer_weights

if TYPE_CHECKING:
    from memory_model.models.load import LoadedModel

Progress = Callable[[int, int], None]
Tensors = Mapping[str, np.ndarray | Tensor]
OPERATORS = ("standard", "fused")
WRITER = "writer"
"""Next to the variants: the graph that writes memories."""


def export_decoder(
    loaded: LoadedModel,
    path: str | Path,
    precision: str | Precision = "int4",
    progress: Progress = lambda *_: None,
    moments: Mapping[str, np.ndarray] | None = None,
) -> list[Path]:
    """Write the decoder of `loaded` to `path` (weights in `<path>.data`) and return the files.

    `writer.onnx` is next to it where the model has memory heads. precision: of the weights. progress: called with
    (layers done, layers). moments: for int4, as `WeightNodes` takes them. Raises InvalidInput.
    """
    path = Path(path)
    with ExternalData(path.with_name(path.name + ".data")) as data:
        graphs = decoder_graphs(
            loaded.model.state_dict(),
            loaded.config,
            precision,
            progress,
            moments,
            OPERATORS + (WRITER,) * bool(loaded.config.memory.heads),
            data,
        )
        files = {"standard": path, "fused": fused_path(path), WRITER: path.with_name(WRITER_FILE)}
        return save_together({files[name]: g for name, g in graphs.items()}, data)


def decoder_graphs(
    weights: Tensors,
    config: ModelConfig,
    precision: str | Precision = "float32",
    progress: Progress = lambda *_: None,
    moments: Mapping[str, np.ndarray] | None = None,
    operators: Sequence[str] = OPERATORS,
    data: ExternalData | None = None,
) -> dict[str, Graph]:
    """Graphs of weights with Hugging Face Llama names (without `model.`), by variant; see `export_decoder`.

    There is no fused variant of a graph that computes with halves, nor of a head dimension the node does not take.
    """
    precision = Precision.parse(precision) if isinstance(precision, str) else precision
    fusible = precision.compute == "float32" and config.head_dim % FUSED_MULTIPLE == 0
    variants = [name for name in operators if name != "fused" or fusible]
    shared = WeightNodes(Graph(config.name, data=data), precision, moments)
    exporters: dict[str, _Exporter] = {}
    for name in variants:
        graph = Graph(config.name, shared.g)
        if name == WRITER:
            own = shared.for_graph(graph, writer_weights(precision))
            exporters[name] = _WriterExporter(weights, config, own, mlp_precision(precision, config))
        else:
            exporters[name] = _DecoderExporter(weights, config, shared.for_graph(graph), name == "fused")
    for layer in range(config.layers):  # side by side, so that each weight is rounded once
        for exporter in exporters.values():
            exporter.layer(layer)
        progress(layer + 1, config.layers)
    return {name: exporter.finish() for name, exporter in exporters.items()}


class _Exporter:
    """Adds the nodes; one instance makes one graph."""

    fused = False
    attention: StandardAttention | FusedAttention | WritingAttention

    def __init__(self, weights: Tensors, config: ModelConfig, nodes: WeightNodes, operators: str) -> None:
        self.weights, self.config, self.layout = weights, config, cache_layout(config)
        self.nodes, self.g = nodes, nodes.g
        self.mlp_precision = nodes.precision
        shape, own = json.dumps(config.to_dict(), sort_keys=True), nodes.precision
        self.g.metadata = {"config": shape, "precision": own.label, "compute": own.compute, "operators": operators}

    def _embed(self, ids: str) -> None:
        """Add the token table; the tokens of all sequences are rows."""
        tied, flat = "lm_head.weight" not in self.weights, self.g.op("Reshape", ids, [-1])
        self._x, self._head = self.nodes.table(flat, lambda: self._weight("embed_tokens.weight"), tied)
        self._delta = ""

    def layer(self, number: int) -> None:
        """Add the next layer: its attention, then its MLP."""
        at = f"layers.{number}"
        self._delta = self._attention(number, self._norm(f"{at}.input_layernorm"))
        self._delta = self._mlp(at, self._norm(f"{at}.post_attention_layernorm"))

    @abstractmethod
    def finish(self) -> Graph:
        """Add what comes after the layers; the graph is then complete."""

    def _weight(self, name: str) -> np.ndarray:
        """A weight as float32, converted when it is read: a large model is not held twice."""
        value = self.weights[name]
        return value if isinstance(value, np.ndarray) else np.asarray(value.detach().float().numpy())

    def _mlp(self, at: str, x: str) -> str:
        g = self.g

        def both() -> np.ndarray:
            return np.concatenate([self._weight(f"{at}.mlp.{p}_proj.weight") for p in ("gate", "up")]).T

        def down() -> np.ndarray:
            return self._weight(f"{at}.mlp.down_proj.weight").T

        widened = self.nodes.linear(x, both, f"{at}.gate_up", self.mlp_precision.bits())
        gate, up = g.ops("Split", widened, out=2, axis=-1, num_outputs=2)
        inner = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)
        return self.nodes.linear(inner, down, f"{at}.down", self.mlp_precision.bits("down"))

    def _attention(self, layer: int, x: str) -> str:
        g, config, d = self.g, self.config, self.config.head_dim
        tensors = self.layout.of(layer)
        bits = self.nodes.precision.bits("attention")
        qkv = self.nodes.linear(x, lambda: self._projections(layer, tensors, "weight").T, f"layers.{layer}.qkv", bits)
        if config.attention_bias:
            qkv = g.op("Add", qkv, self._projections(layer, tensors, "bias").astype(self.nodes.dtype))
        widths = [len(t.heads) * (config.group + 2) * d for t in tensors]
        parts = g.ops("Split", qkv, widths, out=len(widths), axis=-1) if len(tensors) > 1 else [qkv]
        norms = [self._head_norms(layer, len(t.heads)) for t in tensors]
        read = [self.attention.read(*part) for part in zip(tensors, parts, norms, strict=True)]
        joined = read[0] if len(read) == 1 else g.op("Concat", *read, axis=-1)
        columns = projection_rows(config, self.layout.head_order(layer), config.group)

        def output() -> np.ndarray:
            return self._weight(f"layers.{layer}.self_attn.o_proj.weight")[:, columns].T

        return self.nodes.linear(joined, output, f"layers.{layer}.o", bits)

    def _projections(self, layer: int, tensors: tuple[CacheTensor, ...], kind: str) -> np.ndarray:
        """q, k, v as one weight [(H + 2 K) d, D] or bias, by cache tensor; queries or their norm take 1 / sqrt(d)."""
        at, config = f"layers.{layer}.self_attn", self.config
        part = {p: self._weight(f"{at}.{p}_proj.{kind}") for p in ("q", "k", "v")}
        scale = np.float32(1.0 if config.qk_norm else config.head_dim**-0.5)
        found = []
        for tensor in tensors:
            found.append(part["q"][projection_rows(config, tensor.heads, config.group)] * scale)
            found.extend(part[p][projection_rows(config, tensor.heads, 1)] for p in ("k", "v"))
        return np.concatenate(found)

    def _head_norms(self, layer: int, heads: int) -> np.ndarray | None:
        """Weights [heads (G + 1), d] of the norm of queries and keys, where the model has one."""
        if not self.config.qk_norm:
            return None
        q, k = (self._weight(f"layers.{layer}.self_attn.{p}_norm.weight") for p in "qk")
        q = q * np.float32(self.config.head_dim**-0.5)
        return np.concatenate([np.tile(q, (heads * self.config.group, 1)), np.tile(k, (heads, 1))])

    def _summed(self) -> str:
        """Hidden states with what the last part added."""
        if self._delta:
            self._x, self._delta = self.g.op("Add", self._x, self.nodes.wide(self._delta)), ""
        return self._x

    def _norm(self, name: str) -> str:
        """RMSNorm in float32 of the hidden states, after adding what the last part found."""
        weight, epsilon = self._weight(f"{name}.weight"), float(self.config.norm_epsilon)
        if self.fused and self._delta:
            out, x = f"normed_{name}", f"x_{name}"
            self.g.ops(
                "SkipSimplifiedLayerNormalization",
                self._x,
                self._delta,
                weight,
                out=[out, "", "", x] if name != "norm" else [out],
                domain=CONTRIB,
                epsilon=epsilon,
            )
            self._x, self._delta = x, ""
            return out
        return self.nodes.narrow(normed(self.g, self._summed(), weight, epsilon))


class _DecoderExporter(_Exporter):
    """The decoder, in one of its variants."""

    def __init__(self, weights: Tensors, config: ModelConfig, nodes: WeightNodes, fused: bool) -> None:
        super().__init__(weights, config, nodes, "fused" if fused else "standard")
        self.fused = fused
        g = self.g
        ids, positions = (g.input(name, np.int64, ["B", "S"]) for name in ("token_ids", "position_ids"))
        self._wanted = g.input("output_rows", np.int64, ["N"])
        self.attention = (FusedAttention if fused else StandardAttention)(g, nodes, config, self.layout, ids, positions)
        self._embed(ids)
        if fused:  # the node takes [B, S, D]; standard products have the tokens of all sequences as rows
            self._x = g.op("Reshape", self._x, self.attention.widened(config.hidden))

    def finish(self) -> Graph:
        """Add the last norm and the head; the graph is then complete."""
        g = self.g
        if self.fused:  # norms of one row cost less than a sum of their own before the rows are chosen
            x = g.op("Reshape", self._norm("norm"), [-1, self.config.hidden])
            x = g.op("Gather", x, self._wanted, axis=0)
        else:
            self._x = g.op("Gather", self._summed(), self._wanted, axis=0)
            x = self._norm("norm")
        g.output("logits", np.float32, ["N", self.config.vocabulary])
        if self._head is not None:
            self._head(x, "logits")
        else:
            self.nodes.head(x, lambda: self._weight("lm_head.weight"), "logits")
        return g


class _WriterExporter(_Exporter):
    """The writer: the same layers up to the last with memory heads, of which only keys and values are computed."""

    def __init__(self, weights: Tensors, config: ModelConfig, nodes: WeightNodes, mlp: Precision) -> None:
        super().__init__(weights, config, nodes, WRITER)
        self.mlp_precision = mlp
        self.attention = self._writing = WritingAttention(self.g, nodes, config)
        self._embed(self._writing.ids)

    def layer(self, number: int) -> None:
        """Add the next layer, unless no later one has memory."""
        last = self.config.memory.memory_layers[-1]
        if number < last:
            super().layer(number)
        elif number == last:
            self._attention(number, self._norm(f"layers.{number}.input_layernorm"))

    def finish(self) -> Graph:
        """Join what the layers kept."""
        self._writing.finish()
        return self.g
