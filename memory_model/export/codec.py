"""The codec's decoder as an ONNX graph of standard operators, for a device whose accelerator should do it.

Letters: n codes, M parts of a product code, d width of a decoded block.

Input: codes uint8 [n, code_bytes]. Output: vectors float32 [n, d]. The same gathers and the same product as
`memory_model.codec.codec.ProductCodec.decode`. Bits are taken apart by division, because TensorRT has no shifts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto

from memory_model.codec.codec import ProductCodec
from memory_model.errors import InvalidInput
from memory_model.export.graph import Graph

FILE = "codec.onnx"


def export_codec(codec: object, folder: str | Path) -> Path | None:
    """Write `codec.onnx` to `folder`; None, and no file, for a codec that has no graph.

    Only one set of tables for all vectors makes a graph: tables for every group would be a product for
    every group, each too small for an accelerator.
    """
    if not isinstance(codec, ProductCodec) or len(codec.tables.mean) != 1:
        return None
    path = Path(folder) / FILE
    codec_graph(codec).save(path)
    return path


def codec_graph(codec: ProductCodec) -> Graph:
    """The graph of a codec with one set of tables; raises InvalidInput for others."""
    tables = codec.tables
    if len(tables.mean) != 1:
        raise InvalidInput(f"a codec with {len(tables.mean)} sets of tables has no graph")
    g = Graph("codec")
    g.metadata = {"codec_id": codec.codec_id}
    codes = g.op("Cast", g.input("codes", np.uint8, ["vectors", tables.code_bytes]), to=TensorProto.INT32)
    parts, words, width = tables.codewords.shape[1:]
    index = _numbers(g, codes, 8 * tables.coarse_bytes, tables.bits, parts)
    found = _rows(g, tables.codewords[0].reshape(parts * words, width), index, words)
    if tables.coarse is not None:
        halves, coarse_words, half = tables.coarse.shape[1:]
        index = _numbers(g, codes, 0, tables.coarse_bits, halves)
        found = g.op("Add", found, _rows(g, tables.coarse[0].reshape(-1, half), index, coarse_words))
    g.output("vectors", np.float32, ["vectors", tables.mean.shape[1]])
    product = g.op("MatMul", found, g.constant(tables.basis[0], "basis"))
    g.op("Add", product, g.constant(tables.mean, "mean"), out="vectors")
    return g


def _numbers(g: Graph, codes: str, first_bit: int, bits: int, count: int) -> str:
    """`count` numbers of `bits` bits from bit `first_bit` on, int32 [n, count]; codes int32 [n, bytes]."""
    start = first_bit + bits * np.arange(count)
    end = start + bits
    number = None
    for step in range(3):  # 16 bits that begin anywhere lie in three bytes
        byte = start // 8 + step
        inside = 8 * byte < end
        column = g.op("Gather", codes, g.constant(np.where(inside, byte, start // 8)), axis=1)
        column = g.op("Mul", column, g.constant(np.where(inside, 256**step, 0).astype(np.int32)[None]))
        number = column if number is None else g.op("Add", number, column)
    assert number is not None
    number = g.op("Div", number, g.constant((1 << start % 8).astype(np.int32)[None]))
    return g.op("Mod", number, g.constant(np.full((1, 1), 1 << bits, np.int32)))


def _rows(g: Graph, table: np.ndarray, index: str, words: int) -> str:
    """Each part's row of its own stretch of a table [parts * words, width], joined: float32 [n, parts * width]."""
    parts, width = len(table) // words, table.shape[1]
    index = g.op("Add", index, g.constant((words * np.arange(parts)).astype(np.int32)[None]))
    return g.op("Reshape", g.op("Gather", g.constant(table), index, axis=0), g.constant([-1, parts * width]))
