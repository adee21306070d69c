"""How many bytes a decoding step reads: the weights that every token needs, and the key-values of what was said."""

from __future__ import annotations

import math
from pathlib import Path

import onnx

from memory_model.config import ModelConfig

_BITS: dict[int, int] = {
    onnx.TensorProto.FLOAT: 32, onnx.TensorProto.FLOAT16: 16, onnx.TensorProto.BFLOAT16: 16,
    onnx.TensorProto.INT8: 8, onnx.TensorProto.UINT8: 8, onnx.TensorProto.INT4: 4, onnx.TensorProto.UINT4: 4,
    onnx.TensorProto.INT16: 16, onnx.TensorProto.UINT16: 16, onnx.TensorProto.INT32: 32, onnx.TensorProto.UINT32: 32,
    onnx.TensorProto.INT64: 64, onnx.TensorProto.BOOL: 8, onnx.TensorProto.DOUBLE: 64,
}  # fmt: skip
CACHE_BYTES = 4
"""Of one number in the caches, float32."""


def weight_bytes(decoder: Path) -> int:
    """Bytes of the constants of a decoder's graph that a step reads whole.

    A table of which a step only gathers rows (embeddings that are not the head's too, rotary angles) is left out.
    """
    graph = onnx.load(str(decoder), load_external_data=False).graph
    whole: set[str] = set()
    for node in graph.node:
        gathered = node.input[0] if node.op_type == "Gather" else None
        whole.update(name for name in node.input if name != gathered)
    return sum(_size(tensor) for tensor in graph.initializer if tensor.name in whole)


def cache_bytes(config: ModelConfig, text_rows: float, memories: int) -> float:
    """Bytes of keys and values that a step reads with `text_rows` tokens and `memories` memories in the caches."""
    text = config.layers * config.kv_heads * text_rows
    return CACHE_BYTES * 2 * config.head_dim * (text + memories * config.memory.budget)


def _size(tensor: onnx.TensorProto) -> int:
    return math.ceil(math.prod(tensor.dims) * _BITS[tensor.data_type] / 8)
