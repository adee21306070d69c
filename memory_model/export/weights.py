"""Storage of weights in the exported file: float32, float16, int8 or int4, and one token table for input and head.

A quantized linear layer is DequantizeLinear + MatMul, which the runtime fuses. A table that is tied is
stored once, whatever its precision: the head multiplies by it, the input gathers its rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import TensorProto

from memory3.errors import InvalidInput
from memory_model.export.graph import PAGE_BYTES, Graph, packed_int4
from memory_model.export.quantize import BLOCKS, Quantized, quantize

BITS = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}
COMPUTE: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16)}

_LABEL = r"(\w+)(?:-(\d+))?(?:-attention-(\w+))?(?:-down-(\w+))?(?:-table-(\w+))?(-half)?"

AddHead = Callable[[str, str], None]
"""Adds the head: (normed hidden states [N, D], name of the logits)."""


@dataclass(frozen=True)
class Precision:
    """What the file holds and what the device computes with.

    weights: float32, float16, int8 or int4. attention, down, table: the same for the attention's projections, the MLPs'
    down projections, and the token table with the head, by default that of the weights; no fewer bits than these
    in the first two. block: inputs that share a scale. compute: float32, or float16 for matrix products and caches on
    accelerators; norms, softmax and the sum over layers stay float32.
    """

    weights: str = "int4"
    table: str = ""
    block: int = 32
    compute: str = "float32"
    attention: str = ""
    down: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be exported."""
        for name in (self.weights, self.attention, self.down, self.table):
            if name and name not in BITS:
                raise InvalidInput(
                    f"precision must be {', '.join(BITS)}, or int4-64-table-int8 and the like, not {name!r}"
                )
        for name in (self.attention, self.down):
            if name and BITS[name] < BITS[self.weights]:
                raise InvalidInput(f"{name} has fewer bits than the other weights' {self.weights}")
        if self.block not in BLOCKS:
            raise InvalidInput(f"a block is one of {BLOCKS} inputs, not {self.block}")
        if self.compute not in COMPUTE:
            raise InvalidInput(f"compute must be one of {tuple(COMPUTE)}, not {self.compute!r}")

    @classmethod
    def parse(cls, label: str) -> Precision:
        """Inverse of `label`; raises InvalidInput."""
        found = re.fullmatch(_LABEL, label)
        if found is None:
            raise InvalidInput(f"precision {label!r} is not like int4, int4-128-table-int8 or float16-half")
        weights, block, attention, down, table, half = found.groups(default="")
        return cls(weights, table, int(block or 32), "float16" if half else "float32", attention, down)

    @property
    def label(self) -> str:
        """In one word, for manifests and tables: `int4`, `int4-128`, `int4-attention-int8`, `float16-half`."""
        parts = [self.weights]
        if BITS[self.weights] < 16 and self.block != 32:
            parts.append(str(self.block))
        for name in ("attention", "down", "table"):
            own = getattr(self, name)
            if own and own != self.weights:
                parts.append(f"{name}-{own}")
        if self.compute != "float32":
            parts.append("half")
        return "-".join(parts)

    def bits(self, part: str = "") -> int:
        """Bits of a weight: of the attention, of down projections ("down"), or of the others ("")."""
        return BITS[(getattr(self, part) if part else "") or self.weights]


class WeightNodes:
    """Adds the weights of one graph; moments: of the inputs by layer name (`export.activations`), for int4."""

    def __init__(self, graph: Graph, precision: Precision, moments: Mapping[str, np.ndarray] | None = None) -> None:
        self.g, self.precision, self.block = graph, precision, precision.block
        self._stored: dict[tuple[str, int], tuple[str, str]] = {}  # by name and bits
        self._shared: dict[str, tuple[str, str, tuple[int, int, int]]] = {}
        self._moments = moments or {}
        self.dtype = COMPUTE[precision.compute]
        self.kind = TensorProto.FLOAT16 if self.dtype == np.float16 else TensorProto.FLOAT

    def for_graph(self, graph: Graph, weights: str = "") -> WeightNodes:
        """The same for another graph that shares this one's constants: each is rounded once.

        weights: how those that are not of the token table are rounded, by default the same.
        """
        precision = replace(self.precision, table=self._table)
        if weights:
            precision = replace(precision, weights=weights, attention="", down="")
        twin = WeightNodes(graph, precision, self._moments)
        twin._stored, twin._shared = self._stored, self._shared
        return twin

    @property
    def _table(self) -> str:
        return self.precision.table or self.precision.weights

    def linear(self, x: str, weight: Callable[[], np.ndarray], name: str, bits: int = 0) -> str:
        """Tensor x […, inputs] times a weight [inputs, outputs], which is made when it is met first."""
        bits = bits or BITS[self.precision.weights]
        if (name, bits) not in self._stored and bits >= 16:
            stored = np.asarray(weight(), np.float16 if bits == 16 else np.float32)
            self._stored[name, bits] = self.g.constant(stored, f"{name}.float{bits}"), ""
        elif (name, bits) not in self._stored:
            self._store_codes(name, self._quantized(name, weight(), bits))
        codes, scales = self._stored[name, bits]
        if bits >= 16:
            return self.g.op("MatMul", x, self._computed(codes, bits))
        return self._product(x, codes, scales)

    def table(self, ids: str, table: Callable[[], np.ndarray], tied: bool) -> tuple[str, AddHead | None]:
        """Rows float32 [S, D] of the token table [V, D], made when it is met first; if it is `tied`, also the head."""
        # One row is read for each token: a table without head costs no time.
        bits = BITS[self._table] if tied else max(BITS[self._table], 8)
        rows, head = (self._float_table if bits >= 16 else self._code_table)(ids, table, bits)
        return rows, head if tied else None

    def head(self, x: str, weight: Callable[[], np.ndarray], out: str) -> None:
        """Logits [N, V] float32 by a head of its own [V, D]."""
        self._logits(self.linear(x, lambda: weight().T, "lm_head", BITS[self._table]), out)

    def _float_table(self, ids: str, table: Callable[[], np.ndarray], bits: int) -> tuple[str, AddHead]:
        g = self.g
        if ("embed_tokens", bits) not in self._stored:
            own = np.asarray(table(), np.float16 if bits == 16 else np.float32)
            self._stored["embed_tokens", bits] = g.constant(own, "embed_tokens"), ""
        stored, _ = self._stored["embed_tokens", bits]
        rows = g.op("Gather", stored, ids, axis=0)
        rows = g.op("Cast", rows, to=TensorProto.FLOAT) if bits == 16 else rows

        def head(x: str, out: str) -> None:
            # Gemm reads the table as it is stored, so one copy is enough.
            self._logits(g.op("Gemm", x, self._computed(stored, bits), transB=1), out)

        return rows, head

    def _code_table(self, ids: str, table: Callable[[], np.ndarray], bits: int) -> tuple[str, AddHead]:
        """A quantized table is stored as the head reads it, [D, V]; V is padded to whole words.

        TensorRT takes int8 and int4 constants for nothing but matrix weights, so the input reads the same
        bytes as int32 words and takes them apart with integer arithmetic.
        """
        g, in_word, ahead = self.g, 32 // bits, PAGE_BYTES // 4
        if "table" not in self._shared:
            self._shared["table"] = self._store_table(table(), bits, ahead)
        words, scales, (vocabulary, padded, width) = self._shared["table"]
        word = g.op("Div", ids, in_word)
        index = g.op("Sub", ids, g.op("Mul", word, in_word))
        first = g.constant(np.arange(width) * (padded // in_word) + ahead)
        found = g.op("Gather", words, g.op("Add", g.op("Unsqueeze", word, [1]), first), axis=0)
        # Field number `index` of a word, from -half to half - 1. The word is made positive by 2^31, which
        # already moves its last field by half; the others are moved before the modulus.
        half, field = 1 << (bits - 1), np.arange(in_word)
        divisor = g.op("Gather", 1 << (bits * field)[:, None], index, axis=0)
        move = g.op("Gather", np.where(field < in_word - 1, half, 0)[:, None], index, axis=0)
        found = g.op("Add", g.op("Cast", found, to=TensorProto.INT64), 1 << 31)
        found = g.op("Mod", g.op("Add", g.op("Div", found, divisor), move), 2 * half)
        codes = g.op("Sub", g.op("Cast", found, to=TensorProto.FLOAT), float(half))
        factor = g.op("Transpose", g.op("Gather", scales, ids, axis=2), perm=[2, 1, 0])
        factor = g.op("Gather", self.wide(factor), np.arange(width) // self.block, axis=1)
        rows = g.op("Mul", codes, g.op("Flatten", factor, axis=1))

        def head(x: str, out: str) -> None:
            product = self._product(x, *self._stored["embed_tokens", bits])
            self._logits(product, out, vocabulary, padded - vocabulary)

        return rows, head

    def _store_table(self, table: np.ndarray, bits: int, ahead: int) -> tuple[str, str, tuple[int, int, int]]:
        """Store a token table [V, D] as codes; names of its words and of their scales, and (V, padded V, D)."""
        vocabulary, width = table.shape
        if missing := -vocabulary % (32 // bits):
            table = np.pad(table, ((0, missing), (0, 0)))
        q = self._quantized("table", table.T, bits)
        del table  # a gigabyte of a large vocabulary
        # An empty page in front, so that the words have an address of their own (see `ExternalData.add`).
        words = self.g.constant(np.pad(_words(q.codes, bits), (ahead, 0)), "embed_tokens.words")
        self._store_codes("embed_tokens", q)  # after the words, whose bytes in the file these are
        # A shape of its own keeps it apart from the head's scales, which the runtime takes into its kernel.
        scales = self.g.constant(q.scales.astype(self.dtype)[None], "embed_tokens.rows.scale")
        return words, scales, (vocabulary, vocabulary + missing, width)

    def _logits(self, product: str, out: str, vocabulary: int = 0, padded: int = 0) -> None:
        """The head's product [N, padded V] as float32 logits [N, V]."""
        g, product = self.g, self.wide(product)
        if padded:
            g.op("Slice", product, [0], [vocabulary], [1], out=out)
        else:
            g.op("Identity", product, out=out)  # the runtime removes it

    def _computed(self, stored: str, bits: int) -> str:
        """A weight of 16 or 32 bits in the compute type: the runtime converts it once, when it opens the file."""
        same = (bits == 16) == (self.dtype == np.float16)
        return stored if same else self.g.op("Cast", stored, to=self.kind)

    def _quantized(self, name: str, weight: np.ndarray, bits: int) -> Quantized:
        return quantize(weight, bits, self.block, self._moments.get(name))

    def _store_codes(self, name: str, q: Quantized) -> None:
        own = f"{name}.int{q.bits}"
        codes = self.g.constant_int4(q.codes, own) if q.bits == 4 else self.g.constant(q.codes, own)
        self._stored[name, q.bits] = codes, self.g.constant(q.scales.astype(self.dtype), f"{own}.scale")

    def _product(self, x: str, codes: str, scales: str) -> str:
        return self.g.op("MatMul", x, self.g.op("DequantizeLinear", codes, scales, axis=0, block_size=self.block))

    def narrow(self, x: str) -> str:
        """Tensor x float32 in the type that the graph computes with."""
        return x if self.dtype == np.float32 else self.g.op("Cast", x, to=self.kind)

    def wide(self, x: str) -> str:
        """Tensor x in float32: sums over layers, norms and softmax need it."""
        return x if self.dtype == np.float32 else self.g.op("Cast", x, to=TensorProto.FLOAT)


def _words(codes: np.ndarray, bits: int) -> np.ndarray:
    """The bytes of the codes [D, V] as int32 [D * V * bits / 32], the first code in a word's lowest bits."""
    return np.ascontiguousarray(packed_int4(codes) if bits == 4 else codes).reshape(-1).view("<i4")
