"""Weights to int4 or int8: symmetric, one scale for every block of inputs of an output.

This is the form that ONNX's blockwise DequantizeLinear describes, that ONNX Runtime's CPU provider fuses
into one matrix kernel and that TensorRT's weight-only path asks for (symmetric, positive scales). Blocks
of 128 are read fastest and lose most; `memory_model.export.rounding` gets most of that back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memory_model.errors import InvalidInput

BLOCKS = (32, 64, 128)
"""Sizes of a block, in inputs. The last block of a layer may be shorter."""
CANDIDATES = np.linspace(0.80, 1.05, 11, dtype=np.float32)
"""Scales tried for int4, relative to the one that just covers the block's largest weight."""
OUTPUTS_AT_ONCE = 1024
"""Columns quantized together: bounds memory for a large vocabulary."""


@dataclass(frozen=True)
class Quantized:
    """codes int8 [inputs, outputs] in the range of `bits`; scales float32 [inputs / block, outputs]."""

    codes: np.ndarray
    scales: np.ndarray
    bits: int
    block: int

    def dequantize(self) -> np.ndarray:
        """The weights the kernel computes with, float32 [inputs, outputs]."""
        return self.codes.astype(np.float32) * spread(self.scales, self.block, len(self.codes))


def spread(scales: np.ndarray, block: int, inputs: int) -> np.ndarray:
    """Each block's scale for each of its inputs: [inputs, outputs] of [blocks, outputs]."""
    return np.repeat(scales, block, axis=0)[:inputs]


def quantize(weight: np.ndarray, bits: int, block: int = 32) -> Quantized:
    """Round a weight [inputs, outputs] to the nearest codes. Raises InvalidInput.

    int8 takes the scale that covers the largest weight of a block. int4 has so few levels that clipping
    the largest weight a little is often better: each block takes the candidate of least squared error.
    """
    check_weight(weight, bits, block)
    inputs, outputs = weight.shape
    codes = np.empty((inputs, outputs), np.int8)
    scales = np.empty((-(-inputs // block), outputs), np.float32)
    for start in range(0, outputs, OUTPUTS_AT_ONCE):
        part = slice(start, start + OUTPUTS_AT_ONCE)
        for number, row in enumerate(range(0, inputs, block)):
            rows = np.asarray(weight[row : row + block, part], np.float32)
            scale = best_scale(rows, bits)
            codes[row : row + block, part] = round_to(rows, scale, bits)
            scales[number, part] = scale
    return Quantized(codes, scales, bits, block)


def check_weight(weight: np.ndarray, bits: int, block: int) -> None:
    """Raise InvalidInput for what cannot be stored."""
    if bits not in (4, 8):
        raise InvalidInput(f"weights are stored with 4 or 8 bits, not {bits}")
    if block not in BLOCKS:
        raise InvalidInput(f"a block is one of {BLOCKS} inputs, not {block}")
    if not np.isfinite(weight).all():
        raise InvalidInput("a weight is NaN or infinite; the model is broken")


def best_scale(rows: np.ndarray, bits: int, importance: np.ndarray | None = None) -> np.ndarray:
    """Scale [outputs] of one block [inputs of the block, outputs].

    importance [inputs of the block]: weight of each input's squared error, by default all alike.
    """
    if bits == 8:
        return _positive(np.abs(rows).max(axis=0) / 127)
    # Codes reach from -8 to 7, so the covering scale depends on the side of the largest weight.
    cover = _positive(np.maximum(rows.max(axis=0) / 7, -rows.min(axis=0) / 8))
    best, least = cover, np.full(cover.shape, np.inf, np.float32)
    for factor in CANDIDATES:
        scale = cover * factor
        error = round_to(rows, scale, bits) * scale - rows
        np.square(error, out=error)
        total = error.sum(axis=0) if importance is None else importance @ error
        best = np.where(total < least, scale, best)
        least = np.minimum(total, least)
    return best


def round_to(rows: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """The nearest codes, as float32 of the shape of `rows`."""
    codes = np.rint(rows / scale)
    limit = 2 ** (bits - 1)
    return np.clip(codes, -limit, limit - 1, out=codes)


def _positive(scale: np.ndarray) -> np.ndarray:
    """A block of zeros gets scale 1, so that nothing divides by zero."""
    return np.where(scale > 0, scale, 1).astype(np.float32)
