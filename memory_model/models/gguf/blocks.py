"""Blocks of quantised values back to numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from memory3.errors import InvalidInput
from memory_model.models.gguf.header import StoredTensor

_AT_ONCE = 1 << 22
"""Values that are dequantised at once: what is held besides the result stays small."""
_PLAIN = {GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2"}


def require_readable(tensor: StoredTensor, path: Path) -> None:
    """Raise InvalidInput, by name, for a block type that is not read."""
    if tensor.kind in _PLAIN:
        return
    one = np.zeros((1, tensor.data.shape[1]), np.uint8)
    try:
        dequantize(one, tensor.kind)
    except (NotImplementedError, ValueError) as error:
        raise InvalidInput(f"{path}: block type {tensor.kind.name} of {tensor.name} is not read") from error


def dequantized(tensor: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of a tensor in its shape, computed in float32 and rounded once to `dtype`."""
    rows, width = tensor.data.shape[0], tensor.shape[-1]
    values = torch.empty(rows, width, dtype=dtype)
    step = max(1, _AT_ONCE // width)
    for start in range(0, rows, step):
        data = tensor.data[start : start + step]
        values[start : start + step] = torch.from_numpy(_numbers(data, tensor.kind))
    return values.reshape(tensor.shape)


def _numbers(data: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Float32 [rows, width] of uint8 [rows, bytes of a row]."""
    plain = _PLAIN.get(kind)
    if plain:
        return np.ascontiguousarray(data).view(plain).astype(np.float32)
    return np.ascontiguousarray(dequantize(data, kind), dtype=np.float32)
