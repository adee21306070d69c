"""Weights to int4 or int8: symmetric, one scale for every 32 inputs of an output.

This is the form that ONNX's blockwise DequantizeLinear describes, that ONNX Runtime's CPU provider fuses
into one matrix kernel and that TensorRT's weight-only path asks for (symmetric, positive scales).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memory_model.errors import InvalidInput

BLOCK = 32
CANDIDATES = np.linspace(0.80, 1.05, 11, dtype=np.float32)
"""Scales tried for int4, relative to the one that just covers the block's largest weight."""
OUTPUTS_AT_ONCE = 1024
"""Columns quantized together: bounds memory for a large vocabulary."""


@dataclass(frozen=True)
class Quantized:
    """codes int8 [inputs, outputs] in the range of `bits`; scales float32 [inputs / BLOCK, outputs]."""

    codes: np.ndarray
    scales: np.ndarray
    bits: int

    def dequantize(self) -> np.ndarray:
        """The weights the kernel computes with, float32 [inputs, outputs]."""
        return self.codes.astype(np.float32) * np.repeat(self.scales, BLOCK, axis=0)


def quantize(weight: np.ndarray, bits: int) -> Quantized:
    """Quantize a weight [inputs, outputs]; inputs must be a multiple of 32. Raises InvalidInput.

    int8 takes the scale that covers the largest weight of a block. int4 has so few levels that clipping
    the largest weight a little is often better: each block takes the candidate of least squared error.
    """
    if bits not in (4, 8):
        raise InvalidInput(f"weights are stored with 4 or 8 bits, not {bits}")
    inputs, outputs = weight.shape
    if inputs % BLOCK:
        raise InvalidInput(f"a linear layer of {inputs} inputs cannot be cut into blocks of {BLOCK}")
    if not np.isfinite(weight).all():
        raise InvalidInput("a weight is NaN or infinite; the model is broken")
    codes = np.empty((inputs, outputs), np.int8)
    scales = np.empty((inputs // BLOCK, outputs), np.float32)
    for start in range(0, outputs, OUTPUTS_AT_ONCE):
        part = slice(start, start + OUTPUTS_AT_ONCE)
        blocks = np.asarray(weight[:, part], np.float32).reshape(inputs // BLOCK, BLOCK, -1)
        chosen, scale = _int8(blocks) if bits == 8 else _int4(blocks)
        codes[:, part], scales[:, part] = chosen.reshape(inputs, -1), scale
    return Quantized(codes, scales, bits)


def _int8(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale = _positive(np.abs(blocks).max(axis=1) / 127)
    return np.rint(blocks / scale[:, None]).astype(np.int8), scale


def _int4(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Codes reach from -8 to 7, so the covering scale depends on the side of the largest weight.
    cover = _positive(np.maximum(blocks.max(axis=1) / 7, -blocks.min(axis=1) / 8))
    best = np.full(cover.shape, np.inf, np.float32)
    scale = cover.copy()
    for factor in CANDIDATES:
        tried = (cover * factor)[:, None]
        error = np.clip(np.rint(blocks / tried), -8, 7)
        error *= tried
        error -= blocks
        total = np.einsum("bio,bio->bo", error, error)
        better = total < best
        best[better], scale[better] = total[better], tried[:, 0][better]
    return np.clip(np.rint(blocks / scale[:, None]), -8, 7).astype(np.int8), scale


def _positive(scale: np.ndarray) -> np.ndarray:
    """A block of zeros gets scale 1, so that nothing divides by zero."""
    return np.where(scale > 0, scale, 1).astype(np.float32)
