"""`writer.onnx`: texts' tokens to explicit memories on the device, as `memory_model.nn.writing` writes them in torch.

The layers up to the last with memory heads, over whole references without caches; the sparse tokens are chosen inside
the graph (paper 3.3). Letters as in `memory_model.export.decoder`, with N references, P tokens of the prefix, R of the
longest reference, S = P + R, t tokens that a head keeps.

Inputs:  token_ids int64 [N, S], prefix and reference, padded on the right; lengths int64 [N], of the references alone.
Outputs: keys, values float32 [N, budget, d]: keys rotated, rows in the order of the budget table. Of a head's t rows
         those beyond a reference's length are undefined.
"""

from __future__ import annotations

import numpy as np

from memory3.config import ModelConfig
from memory3.runtime.cache_layout import CacheTensor
from memory_model.export.attention import normed
from memory_model.export.graph import Graph
from memory_model.export.weights import BITS, Precision, WeightNodes

LONGEST_PREFIX = 32
"""Tokens; the rotary tables in the graph are as long as a reference behind such a prefix."""


SMALL_PARAMETERS = 300_000_000
"""A base of more weights than this shares the decoder's MLP weights with its writer."""


def writer_weights(decoder: Precision) -> str:
    """How the writer's weights are rounded: as the decoder's, but not to less than int8 (decision 0038)."""
    return decoder.weights if BITS[decoder.weights] >= 8 else "int8"


def mlp_precision(decoder: Precision, config: ModelConfig) -> Precision:
    """Of the writer's MLPs: the decoder's own for a large base, so that they are stored once.

    What is written suffers far less from int4 MLPs than from int4 attention (decision 0052).
    """
    return decoder if config.parameters() > SMALL_PARAMETERS else Precision(writer_weights(decoder))


class WritingAttention:
    """Causal attention of whole references, added layer by layer; keeps the sparse tokens of each head with memory."""

    def __init__(self, g: Graph, nodes: WeightNodes, config: ModelConfig) -> None:
        self.g, self.nodes, self.config = g, nodes, config
        self.ids = g.input("token_ids", np.int64, ["N", "S"])
        lengths = g.input("lengths", np.int64, ["N"])
        self._shape = g.op("Shape", self.ids)
        S = g.op("Slice", self._shape, [1], [2])
        longest = g.op("ReduceMax", lengths, [0], keepdims=1)
        self._prefix, self._longest = g.op("Sub", S, longest), longest
        positions = np.arange(config.memory.reference_tokens + LONGEST_PREFIX)
        angles = np.outer(positions, np.tile(config.frequencies, 2))
        # [S, 1, d], for tensors [N, S, heads, d]
        self._cos, self._sin = (
            g.op("Slice", turn.astype(np.float32)[:, None], [0], S, [0]) for turn in (np.cos(angles), np.sin(angles))
        )
        causal = np.where(positions[:, None] >= positions, np.float32(0), np.float32(-np.inf))
        self._causal = g.op("Slice", causal, [0, 0], g.op("Concat", S, S, axis=0), [0, 1])  # [S, S]
        own = g.op("Slice", positions, [0], longest)
        real = g.op("Less", own, g.op("Unsqueeze", lengths, [1]))  # [N, R]
        # Padding neither gives nor receives attention.
        self._receives = g.op("Where", real, 0.0, float("-inf"))
        self._gives = g.op("Cast", real, to=1)
        self._kept: tuple[list[str], list[str]] = [], []

    def read(self, tensor: CacheTensor, qkv: str, norm: np.ndarray | None = None) -> str:
        """Attend; qkv [N S, h (G + 2) d], returns [N S, h G d]."""
        g, group, heads, d = self.g, self.config.group, len(tensor.heads), self.config.head_dim
        turning = heads * (group + 1)
        shape = g.op("Concat", self._shape, [turning + heads, d], axis=0)
        qk, v = g.ops("Split", g.op("Reshape", self.nodes.wide(qkv), shape), [turning, heads], out=2, axis=2)
        if norm is not None:
            qk = normed(g, qk, norm, self.config.norm_epsilon)
        turned = qk if tensor.layer in self.config.plain_layers else self._rotated(qk)
        apart = g.op("Concat", self._shape, [heads, group, d], axis=0)

        def parts(x: str) -> tuple[str, str]:
            """Queries [N, h, G, S, d] and keys [N, h, S, d]."""
            q, k = g.ops("Split", x, [heads * group, heads], out=2, axis=2)
            q = g.op("Transpose", g.op("Reshape", q, apart), perm=[0, 2, 3, 1, 4])
            return q, g.op("Transpose", k, perm=[0, 2, 1, 3])

        q, k = parts(turned)
        v = g.op("Transpose", v, perm=[0, 2, 1, 3])
        if tensor.tokens:
            self._keep(tensor, *(parts(qk) if turned != qk else (q, k)), k, v)
        scores = g.op("Add", self._products(q, k), self._causal)
        found = g.op("MatMul", g.op("Softmax", scores, axis=-1), g.op("Unsqueeze", v, [2]))
        found = g.op("Transpose", found, perm=[0, 3, 1, 2, 4])
        return self.nodes.narrow(g.op("Reshape", found, [-1, heads * group * d]))

    def finish(self) -> None:
        """Add the outputs."""
        for name, kept in zip(("keys", "values"), self._kept, strict=True):
            self.g.output(name, np.float32, ["N", self.config.memory.budget, self.config.head_dim])
            self.g.op("Concat", *kept, axis=1, out=name)

    def _products(self, q: str, k: str) -> str:
        """[N, h, G, S, S] of queries, which are scaled already, and keys."""
        g = self.g
        return g.op("MatMul", q, g.op("Unsqueeze", g.op("Transpose", k, perm=[0, 1, 3, 2]), [2]))

    def _rotated(self, x: str) -> str:
        g = self.g
        first, second = g.ops("Split", x, out=2, axis=-1, num_outputs=2)
        across = g.op("Concat", g.op("Neg", second), first, axis=-1)
        return g.op("Add", g.op("Mul", x, self._cos), g.op("Mul", across, self._sin))

    def _own(self, x: str, axis: int) -> str:
        """Without the prefix."""
        g = self.g
        return g.op("Slice", x, self._prefix, [np.iinfo(np.int64).max], [axis])

    def _keep(self, tensor: CacheTensor, q: str, k: str, rotated: str, v: str) -> None:
        """Choose the sparse tokens of each head by the attention they receive, unrotated and without causal mask."""
        g, d, full = self.g, self.config.head_dim, self.config.memory.reference_tokens
        own = [self._own(x, 2) for x in (rotated, v)]
        received = ""
        if any(tokens < full for tokens in tensor.tokens):
            unmasked = self._products(self._own(q, 3), self._own(k, 2))
            receives = g.op("Unsqueeze", self._receives, [1, 2, 3])
            weights = g.op("Softmax", g.op("Add", unmasked, receives), axis=-1)
            weights = g.op("Mul", weights, g.op("Unsqueeze", self._gives, [1, 2, 4]))
            received = g.op("ReduceSum", weights, [2, 3], keepdims=0)
            received = g.op("Add", received, g.op("Unsqueeze", self._receives, [1]))
        for head, tokens in enumerate(tensor.tokens):
            at = [head], [head + 1], [1]
            count, index = self._longest, ""
            if tokens < full:
                count = g.op("Min", self._longest, [tokens])
                _, best = g.ops("TopK", g.op("Slice", received, *at), count, out=2, axis=-1)
                index, _ = g.ops("TopK", best, count, out=2, axis=-1, largest=0)  # in order of position
                index = g.op("Expand", g.op("Unsqueeze", index, [3]), [1, 1, 1, d])
            missing = g.op("Sub", [tokens], count)
            pads = g.op("Concat", [0] * 6, missing, [0], axis=0)
            for kept, x in zip(self._kept, own, strict=True):
                x = g.op("Slice", x, *at)
                x = g.op("GatherElements", x, index, axis=2) if index else x
                kept.append(g.op("Squeeze", g.op("Pad", x, pads), [1]))
