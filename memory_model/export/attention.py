"""Attention of one layer in two spellings: standard operators for every runtime, one fused node for the CPU.

Letters as in `memory_model.export.decoder`. Both take the products q | k | v of one cache tensor's heads,
[…, S, h (G + 2) d], and return [h G d] for every token; both write keys and values into the caches.

Standard: ScatterND into the caches, then grouped products, a mask and a softmax. The query heads of a group have a
dimension of their own: as rows of one product they would make the kernel copy the cache first (2 times slower).
Fused: ONNX Runtime's GroupQueryAttention, which sees the rows from 0 to the token's own (decision 0011).
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from memory_model.cache_layout import TEXT, CacheLayout, CacheTensor, mask_name, rows_name
from memory_model.config import ModelConfig
from memory_model.export.graph import Graph
from memory_model.export.weights import Weights

CONTRIB = "com.microsoft"
FUSED_MULTIPLE = 16
"""What divides the head dimension of every GroupQueryAttention."""
ROOM = 64
"""Cache rows by which the caller may round the capacity up."""


def rotary_angles(config: ModelConfig, capacity: int) -> np.ndarray:
    """Float64 [positions, d / 2]: the angle of every pair of dimensions at every position."""
    return np.arange(capacity + config.memory.reference_tokens)[:, None] * config.frequencies


def mask_input(g: Graph, layout: CacheLayout, number: int) -> tuple[str, int]:
    """The mask [1 or h, 1, S, R] of a layout and its first dimension: heads that keep different numbers of
    tokens need masks of their own.
    """  # noqa: D205
    tokens = () if number == TEXT else layout.layouts[number]
    lead = 1 if len(set(tokens)) <= 1 else len(tokens)
    return g.input(mask_name(number), np.float32, [lead, 1, "S", f"R_{number + 1}"]), lead


class StandardAttention:
    """ScatterND, grouped products, softmax: ONNX operators of opset 21."""

    def __init__(
        self, g: Graph, lay: Weights, config: ModelConfig, layout: CacheLayout, capacity: int, positions: str
    ) -> None:
        self.g, self.lay, self.config = g, lay, config
        self._masks: dict[int, str] = {}
        self._indices: dict[tuple[int, int], str] = {}
        for number in layout.numbers:
            self._masks[number], _ = mask_input(g, layout, number)
            rows = g.op("Unsqueeze", g.input(rows_name(number), np.int64, ["S"]), g.constant([0, 1, 3]))
            for heads in sorted({len(t.heads) for t in layout.tensors if t.layout == number}):
                # [h, 1, S, 3]: for every token the head's number, 0 and the row.
                each = g.constant(np.arange(heads, dtype=np.int64).reshape(-1, 1, 1, 1))
                head = g.op("Add", g.op("Mul", rows, g.constant(0)), each)
                zero = g.op("Mul", head, g.constant(0))
                self._indices[number, heads] = g.op("Concat", head, zero, g.op("Add", zero, rows), axis=3)
        self._rotation = self._turns(rotary_angles(config, capacity), positions)

    def _turns(self, angle: np.ndarray, positions: str) -> str:
        """[S, 1, d, d]: the rotary turn of each token as a matrix, so that a layer rotates by one MatMul."""
        g, d = self.g, self.config.head_dim
        angle = np.concatenate((angle, angle), axis=1)[:, None, None, :]
        cos = g.op("Gather", g.constant(np.cos(angle).astype(np.float32)), positions)
        sin = g.op("Gather", g.constant(np.sin(angle).astype(np.float32)), positions)
        turn = np.zeros((d, d), np.float32)
        half = np.arange(d // 2)
        turn[half + d // 2, half], turn[half, half + d // 2] = -1.0, 1.0
        straight = g.op("Mul", g.constant(np.eye(d, dtype=np.float32)), cos)
        return self.lay.narrow(g.op("Add", straight, g.op("Mul", g.constant(turn), sin)))

    def read(self, tensor: CacheTensor, qkv: str, norm: np.ndarray | None = None) -> str:
        """Attend; qkv [S, h (G + 2) d]."""
        g, group, heads, d = self.g, self.config.group, len(tensor.heads), self.config.head_dim
        turning = heads * (group + 1)
        qkv = g.op("Reshape", qkv, g.constant([-1, 1, turning + heads, d]))
        qk, v = g.ops("Split", qkv, g.constant([turning, heads]), out=2, axis=2)
        if norm is not None:
            qk = self._normed(qk, norm)
        if tensor.layer not in self.config.plain_layers:
            qk = g.op("MatMul", qk, self._rotation)
        q, k = g.ops("Split", qk, g.constant([heads * group, heads]), out=2, axis=2)
        q = g.op("Transpose", g.op("Reshape", q, g.constant([-1, heads, group, d])), perm=[1, 2, 0, 3])
        caches = []
        for name, new in ((tensor.keys, k), (tensor.values, v)):
            shape: list[int | str] = [heads, 1, f"R_{tensor.layout + 1}", d]
            cache = g.input(name, self.lay.dtype.type, shape)
            g.output(f"{name}_out", self.lay.dtype.type, shape)
            new = g.op("Transpose", new, perm=[2, 1, 0, 3])  # [h, 1, S, d]
            index = self._indices[tensor.layout, heads]
            caches.append(g.op("ScatterND", cache, index, new, out=f"{name}_out"))
        scores = self.lay.wide(g.op("MatMul", q, g.op("Transpose", caches[0], perm=[0, 1, 3, 2])))
        weights = g.op("Softmax", g.op("Add", scores, self._masks[tensor.layout]), axis=-1)
        found = g.op("MatMul", self.lay.narrow(weights), caches[1])
        return g.op(
            "Reshape", g.op("Transpose", found, perm=[2, 0, 1, 3]), g.constant([-1, heads * group * d])
        )

    def _normed(self, qk: str, weight: np.ndarray) -> str:
        """RMSNorm over d of [S, 1, h (G + 1), d], in float32."""
        g, x = self.g, self.lay.wide(qk)
        mean = g.op("ReduceMean", g.op("Pow", x, g.constant(2.0)), g.constant([-1]), keepdims=1)
        root = g.op("Sqrt", g.op("Add", mean, g.constant(float(self.config.norm_epsilon))))
        return self.lay.narrow(g.op("Mul", g.op("Div", x, root), g.constant(weight.astype(np.float32))))


class FusedAttention:
    """One GroupQueryAttention node for each cache tensor: ONNX Runtime's operator, float32 caches [1, h, R, d]."""

    def __init__(
        self, g: Graph, lay: Weights, config: ModelConfig, layout: CacheLayout, capacity: int, positions: str
    ) -> None:
        self.g, self.lay, self.config = g, lay, config
        self._rows: dict[int, tuple[str, str]] = {}
        self._bias: dict[int, str] = {TEXT: ""}
        for number in layout.numbers:
            last = g.op("Gather", g.input(rows_name(number), np.int64, ["S"]), g.constant([-1]), axis=0)
            last = g.op("Cast", last, to=TensorProto.INT32)
            if number == TEXT:
                total = g.op("Add", last, g.constant(np.ones(1, np.int32)))
            else:  # the node wants the mask's length here; how far a token sees is `last` all the same
                self._bias[number], mask = self._mask(layout, number)
                total = g.op("Cast", g.op("Shape", mask, start=3), to=TensorProto.INT32)
            self._rows[number] = last, total
        # The node asks for as many angles as there are rows, slots included, though positions are fewer.
        slots = config.memory.memories_per_chunk * max((max(t) for t in layout.layouts), default=0)
        angle = rotary_angles(config, capacity + slots + ROOM)
        self._cos, self._sin = (g.constant(turn(angle).astype(np.float32)) for turn in (np.cos, np.sin))
        self._positions = g.op("Unsqueeze", positions, g.constant([0]))

    def _mask(self, layout: CacheLayout, number: int) -> tuple[str, str]:
        """The mask as the node reads it, [1, 1 or h G, S, R], and as it comes."""
        g, group = self.g, self.config.group
        mask, lead = mask_input(g, layout, number)
        if lead == 1:
            return mask, mask
        each = g.op("Expand", mask, g.constant([lead, group, 1, 1]))
        joined = g.op("Shape", mask, start=2)
        shape = g.op("Concat", g.constant([1, lead * group]), joined, axis=0)
        return g.op("Reshape", each, shape), mask

    def read(self, tensor: CacheTensor, qkv: str, norm: np.ndarray | None = None) -> str:
        """Attend; qkv [1, S, h (G + 2) d]."""
        g, heads = self.g, len(tensor.heads)
        if norm is not None:
            qkv = self._normed(tensor, qkv, norm)
        rotates = tensor.layer not in self.config.plain_layers
        angles = (self._cos, self._sin, self._positions) if rotates else ("", "", "")
        shape: list[int | str] = [1, heads, f"R_{tensor.layout + 1}", self.config.head_dim]
        for name in (tensor.keys, tensor.values):
            g.input(name, np.float32, shape)
            g.output(f"{name}_out", np.float32, shape)
        last, total = self._rows[tensor.layout]
        found = f"read_{tensor.keys}"
        g.ops(
            "GroupQueryAttention", qkv, "", "", tensor.keys, tensor.values, last, total, *angles,
            self._bias[tensor.layout],
            out=[found, f"{tensor.keys}_out", f"{tensor.values}_out"], domain=CONTRIB,
            num_heads=heads * self.config.group, kv_num_heads=heads, do_rotary=int(rotates), scale=1.0,
        )  # fmt: skip
        return found

    def _normed(self, tensor: CacheTensor, qkv: str, weight: np.ndarray) -> str:
        """RMSNorm of every query and key head of [1, S, h (G + 2) d]."""
        g, heads, d = self.g, len(tensor.heads), self.config.head_dim
        turning = heads * (self.config.group + 1)
        apart = g.op("Reshape", qkv, g.constant([1, -1, turning + heads, d]))
        qk, v = g.ops("Split", apart, g.constant([turning, heads]), out=2, axis=2)
        one = g.constant(np.ones(d, np.float32))
        qk = g.op("SimplifiedLayerNormalization", qk, one, axis=-1, epsilon=float(self.config.norm_epsilon))
        qk = g.op("Mul", qk, g.constant(weight.astype(np.float32)))
        return g.op("Reshape", g.op("Concat", qk, v, axis=2), g.constant([1, -1, (turning + heads) * d]))
