"""Attention of one layer in two variants: standard operators for every runtime, one fused node for the CPU.

Letters as in `memory_model.export.decoder`. Both take the products q | k | v of one cache tensor's heads and return
what every token found, h G d wide; both write keys and values into the caches, from a sequence's first new row on.

Standard: ScatterND into the caches, a slice of as many rows as are seen, grouped products, a mask and a softmax.
Fused: ONNX Runtime's GroupQueryAttention, which sees a sequence's rows from 0 to the token's own (decision 0011).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from memory3.config import ModelConfig
from memory3.runtime.cache_layout import TEXT, CacheLayout, CacheTensor, mask_name, rows_name
from memory_model.export.graph import Graph
from memory_model.export.weights import WeightNodes

CONTRIB = "com.microsoft"
FUSED_MULTIPLE = 16
"""What divides the head dimension of every GroupQueryAttention."""


class AttentionNodes:
    """What both variants share: inputs of rows, masks, rotary tables and caches.

    ids, positions: names of the graph's inputs [B, S].
    """

    def __init__(
        self, g: Graph, nodes: WeightNodes, config: ModelConfig, layout: CacheLayout, ids: str, positions: str
    ) -> None:
        self.g, self.nodes, self.config, self.layout = g, nodes, config, layout
        self._positions = positions
        self._shape = g.op("Shape", ids)  # [B, S]
        self._count = g.op("Slice", self._shape, [1], [2])  # [S]
        angles: list[int | str] = ["P", config.head_dim // 2]
        self._cos = g.input("rotary_cos", np.float32, angles)
        self._sin = g.input("rotary_sin", np.float32, angles)
        self._rows = {number: g.input(rows_name(number), np.int64, ["B"]) for number in layout.numbers}
        sizes: dict[int, list[int | str]] = {n: ["B", layout.lead(n), layout.slots(n)] for n in self._rows if n != TEXT}
        self._memory_masks = {n: g.input(mask_name(n), np.float32, shape) for n, shape in sizes.items()}
        self._prepare()

    def _prepare(self) -> None:
        """Makes what all layers read."""

    def _caches(self, tensor: CacheTensor) -> tuple[str, str]:
        """The inputs of keys and values [B, h, R, d]; their outputs are declared."""
        shape: list[int | str] = ["B", len(tensor.heads), f"R_{tensor.layout + 1}", self.config.head_dim]
        for name in (tensor.keys, tensor.values):
            self.g.input(name, self.nodes.dtype.type, shape)
            self.g.output(f"{name}_out", self.nodes.dtype.type, shape)
        return tensor.keys, tensor.values

    def _offer(self, tensor: CacheTensor, queries: str, shape: Sequence[int | str]) -> str:
        """Make a tensor that begins with a token's queries an output, where the heads have memory; its name then.

        It is there anyway, so the output costs nothing in a run that does not request it.
        """
        if not tensor.tokens:
            return queries
        return self.g.offer(queries, tensor.queries, self.nodes.dtype.type, shape)

    def widened(self, *rest: int) -> str:
        """The shape [B, S, …] as a tensor."""
        return self.g.op("Concat", self._shape, list(rest), axis=0)


class StandardAttention(AttentionNodes):
    """ONNX operators of opset 21; products of tokens are [B S, width]."""

    def _prepare(self) -> None:
        g, layout, positions = self.g, self.layout, self._positions
        batch = g.op("Unsqueeze", g.input("batch_ids", np.int64, ["B"]), [1, 2, 3])
        columns = g.input("columns", np.int64, ["T"])
        after_first = g.op("Sub", positions, g.op("Slice", positions, [0], [1], [1]))  # [B, S]: 0, 1, 2, …
        self._masks: dict[int, str] = {}
        self._ends: dict[int, str] = {}
        self._indices: dict[tuple[int, int], str] = {}
        for number in layout.numbers:
            rows = g.op("Add", g.op("Unsqueeze", self._rows[number], [1]), after_first)
            rows = g.op("Unsqueeze", rows, [1, 3])  # [B, 1, S, 1]
            for heads in sorted({len(t.heads) for t in layout.tensors if t.layout == number}):
                # [B, h, S, 3]: for every token the sequence's number, the head's and the row.
                zero = g.op("Mul", rows, 0)
                head = g.op("Add", zero, np.arange(heads, dtype=np.int64).reshape(1, -1, 1, 1))
                zero = g.op("Mul", head, 0)
                index = g.op("Concat", g.op("Add", batch, zero), head, g.op("Add", rows, zero), axis=3)
                self._indices[number, heads] = index
            self._masks[number], self._ends[number] = self._mask(number, rows, columns)
        self._rotation = self._turns()

    def _mask(self, number: int, rows: str, columns: str) -> tuple[str, str]:
        """The mask [B, 1 or h, G S, T] of a layout, and T, the number of rows that are seen."""
        g = self.g
        if number == TEXT:
            mask = self._causal(columns, rows)
        else:
            slots, lead = self.layout.slots(number), self.layout.lead(number)
            before = self._causal(g.constant(np.arange(slots, dtype=np.int64)), rows)
            columns = g.op("Add", columns, slots)
            memory = g.op("Unsqueeze", self._memory_masks[number], [2])
            text = self._causal(columns, rows)
            text = g.op("Concat", *[text] * lead, axis=1) if lead > 1 else text
            mask = g.op("Concat", g.op("Add", before, memory), text, axis=3)
        end = g.op("Shape", mask, start=3)
        return g.op("Concat", *[mask] * self.config.group, axis=2), end

    def _causal(self, columns: str, rows: str) -> str:
        """[B, 1, S, columns]: 0 for the columns up to each token's row, else -inf."""
        return self.g.op("Where", self.g.op("LessOrEqual", columns, rows), 0.0, float("-inf"))

    def _turns(self) -> str:
        """[B, S, d, d]: the rotary turn of each token as a matrix, so that a layer rotates by one MatMul."""
        g, d = self.g, self.config.head_dim

        def angle(table: str) -> str:
            half = g.op("Gather", table, self._positions)
            return g.op("Unsqueeze", g.op("Concat", half, half, axis=2), [2])

        turn = np.zeros((d, d), np.float32)
        half = np.arange(d // 2)
        turn[half + d // 2, half], turn[half, half + d // 2] = -1.0, 1.0
        straight = g.op("Mul", np.eye(d, dtype=np.float32), angle(self._cos))
        return self.nodes.narrow(g.op("Add", straight, g.op("Mul", turn, angle(self._sin))))

    def read(self, tensor: CacheTensor, qkv: str, norm: np.ndarray | None = None) -> str:
        """Attend; qkv [B S, h (G + 2) d], returns [B S, h G d]."""
        g, group, heads, d = self.g, self.config.group, len(tensor.heads), self.config.head_dim
        turning = heads * (group + 1)
        if norm is None:
            qkv = self._offer(tensor, qkv, ["BS", (turning + heads) * d])
        qkv = g.op("Reshape", qkv, self.widened(turning + heads, d))
        qk, v = g.ops("Split", qkv, [turning, heads], out=2, axis=2)
        if norm is not None:
            qk = self.nodes.narrow(normed(g, self.nodes.wide(qk), norm, self.config.norm_epsilon))
            qk = self._offer(tensor, qk, ["B", "S", turning, d])
        if tensor.layer not in self.config.plain_layers:
            qk = g.op("MatMul", qk, self._rotation)
        q, k = g.ops("Split", qk, [heads * group, heads], out=2, axis=2)
        # The query heads of a group are rows of one product: [B, h, G S, d].
        q = g.op("Transpose", g.op("Reshape", q, self.widened(heads, group, d)), perm=[0, 2, 3, 1, 4])
        q = g.op("Reshape", q, [0, heads, -1, d])
        seen = []
        for cache, new in zip(self._caches(tensor), (k, v), strict=True):
            new = g.op("Transpose", new, perm=[0, 2, 1, 3])  # [B, h, S, d]
            written = g.op("ScatterND", cache, self._indices[tensor.layout, heads], new, out=f"{cache}_out")
            seen.append(g.op("Slice", written, [0], self._ends[tensor.layout], [2]))
        scores = self.nodes.wide(g.op("MatMul", q, g.op("Transpose", seen[0], perm=[0, 1, 3, 2])))
        weights = g.op("Softmax", g.op("Add", scores, self._masks[tensor.layout]), axis=-1)
        found = g.op("MatMul", self.nodes.narrow(weights), seen[1])
        apart = g.op("Concat", [0, heads, group], self._count, [d], axis=0)
        found = g.op("Transpose", g.op("Reshape", found, apart), perm=[0, 3, 1, 2, 4])
        return g.op("Reshape", found, [-1, heads * group * d])


def normed(g: Graph, x: str, weight: np.ndarray, epsilon: float) -> str:
    """RMSNorm over the last dimension of x float32, in the form that the runtime's fusion expects.

    weight: [D] of hidden states [N, D], [heads, d] of queries and keys [B, S, heads, d].
    """
    mean = g.op("ReduceMean", g.op("Pow", x, 2.0), [-1], keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, float(epsilon)))
    return g.op("Mul", g.op("Div", x, root), weight.astype(np.float32))


class FusedAttention(AttentionNodes):
    """One GroupQueryAttention node for each cache tensor: ONNX Runtime's operator, float32; products [B, S, width]."""

    def _prepare(self) -> None:
        g, layout = self.g, self.layout
        self._seen: dict[int, tuple[str, str]] = {}
        self._bias: dict[int, str] = {TEXT: ""}
        for number in layout.numbers:
            end = g.op("Add", self._rows[number], self._count)  # [B]: rows that a sequence's last token sees
            total = g.op("ReduceMax", end, [0], keepdims=1)
            if number != TEXT:  # the mask is as long as the node's total, how far a token sees is `last` all the same
                total = g.op("Max", total, [layout.slots(number)])
                self._bias[number] = self._mask(number, total)
            last = g.op("Cast", g.op("Sub", end, 1), to=TensorProto.INT32)
            self._seen[number] = last, g.op("Cast", total, to=TensorProto.INT32)

    def _mask(self, number: int, total: str) -> str:
        """The mask as the node reads it, [B, 1 or h G, S, total]: the slots', then zeros over the text."""
        g, group, lead = self.g, self.config.group, self.layout.lead(number)
        pads = g.op("Concat", [0] * 5, g.op("Sub", total, [self.layout.slots(number)]), axis=0)
        mask = g.op("Unsqueeze", g.op("Pad", self._memory_masks[number], pads), [2])
        if lead > 1:  # every query head has its own
            mask = g.op("Reshape", g.op("Concat", *[mask] * group, axis=2), [0, lead * group, 1, -1])
        return g.op("Expand", mask, g.op("Concat", [1, 1], self._count, [1], axis=0))

    def read(self, tensor: CacheTensor, qkv: str, norm: np.ndarray | None = None) -> str:
        """Attend; qkv [B, S, h (G + 2) d], returns [B, S, h G d]."""
        g, heads = self.g, len(tensor.heads)
        if norm is not None:
            qkv = self._normed(tensor, qkv, norm)
        qkv = self._offer(tensor, qkv, ["B", "S", heads * (self.config.group + 2) * self.config.head_dim])
        rotates = tensor.layer not in self.config.plain_layers
        angles = (self._cos, self._sin, self._positions) if rotates else ("", "", "")
        keys, values = self._caches(tensor)
        return g.ops(
            "GroupQueryAttention",
            qkv,
            "",
            "",
            keys,
            values,
            *self._seen[tensor.layout],
            *angles,
            self._bias[tensor.layout],
            out=[f"read_{keys}", f"{keys}_out", f"{values}_out"],
            domain=CONTRIB,
            num_heads=heads * self.config.group,
            kv_num_heads=heads,
            do_rotary=int(rotates),
            scale=1.0,
        )[0]

    def _normed(self, tensor: CacheTensor, qkv: str, weight: np.ndarray) -> str:
        """RMSNorm of every query and key head of [B, S, h (G + 2) d]."""
        g, heads, d = self.g, len(tensor.heads), self.config.head_dim
        turning = heads * (self.config.group + 1)
        apart = g.op("Reshape", qkv, [0, 0, turning + heads, d])
        qk, v = g.ops("Split", apart, [turning, heads], out=2, axis=2)
        qk = g.op("SimplifiedLayerNormalization", qk, np.ones(d, np.float32), axis=-1, epsilon=self.config.norm_epsilon)
        qk = g.op("Mul", qk, weight.astype(np.float32))
        return g.op("Reshape", g.op("Concat", qk, v, axis=2), [0, 0, (turning + heads) * d])
