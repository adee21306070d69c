"""Blocks of quantised values back to numbers, piece by piece, with the package gguf."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from memory3.errors import InvalidInput
from memory_model.models.gguf.header import StoredTensor

_AT_ONCE = 1 << 17
"""Values that are dequantised at once: what is held besides the result fits a core's cache."""
_PLAIN = {GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2"}


def require_readable(tensor: StoredTensor, path: Path) -> None:
    """Raise InvalidInput, by name, for a block type that is not read."""
    if tensor.kind in _PLAIN:
        return
    one = np.zeros((1, GGML_QUANT_SIZES[tensor.kind][1]), np.uint8)
    try:
        dequantize(one, tensor.kind)
    except (NotImplementedError, ValueError) as error:
        raise InvalidInput(f"{path}: block type {tensor.kind.name} of {tensor.name} is not read") from error


def dequantized(tensor: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of a tensor in its shape, float32 or bfloat16, computed in float32 and rounded once."""
    rows, width = tensor.data.shape[0], tensor.shape[-1]
    step = max(1, _AT_ONCE // width)
    narrow = dtype == torch.bfloat16
    values = np.empty((rows, width), np.int16 if narrow else np.float32)

    def read(start: int) -> None:
        piece = _numbers(tensor.data[start : start + step], tensor.kind)
        values[start : start + step] = _bfloat16_bits(piece) if narrow else piece

    starts = range(0, rows, step)
    if len(starts) == 1:
        read(0)
    else:  # numpy lets other threads run while it computes
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            list(pool.map(read, starts))
    found = torch.from_numpy(values)
    return (found.view(torch.bfloat16) if narrow else found).reshape(tensor.shape)


def _numbers(data: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Float32 [rows, width] of uint8 [rows, bytes of a row]."""
    if plain := _PLAIN.get(kind):
        return data.view(plain).astype(np.float32)
    # As one long row, since the package takes 16 rows at a time and blocks do not know their row.
    return np.asarray(dequantize(data.reshape(1, -1), kind), np.float32).reshape(len(data), -1)


def _bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """The upper halves of float32, rounded to the nearest even one, as int16."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.int16)
