"""Weights to int4 or int8: symmetric, one scale for every block of inputs of an output.

This is the form that ONNX's blockwise DequantizeLinear describes, that ONNX Runtime's CPU provider fuses
into one matrix kernel and that TensorRT's weight-only path takes (symmetric, positive scales).

Weights go to the nearest code, or are calibrated (GPTQ, Frantar et al. 2023, with scales that are fixed beforehand) by
the second moments H of a layer's inputs (decision 0016).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from memory3.errors import InvalidInput

BLOCKS = (32, 64, 128)
"""Sizes of a block, in inputs. The last block of a layer may be shorter."""
CANDIDATES = np.linspace(0.80, 1.05, 11, dtype=np.float32)
"""Scales tried for int4, relative to the one that just covers the block's largest weight."""
OUTPUTS_AT_ONCE = 1024
"""Columns quantized together: bounds memory for a large vocabulary."""
DAMPING = 0.01
"""Added to the diagonal of H, relative to its mean: inputs that were never active stay well-behaved."""
INPUTS_AT_ONCE = 128
"""Inputs whose corrections are applied to the rest together, as one matrix product."""


@dataclass(frozen=True)
class Quantized:
    """codes int8 [inputs, outputs] in the range of `bits`; scales float32 [inputs / block, outputs]."""

    codes: np.ndarray
    scales: np.ndarray
    bits: int
    block: int

    def dequantize(self) -> np.ndarray:
        """The weights the kernel computes with, float32 [inputs, outputs]."""
        return self.codes.astype(np.float32) * np.repeat(self.scales, self.block, axis=0)[: len(self.codes)]


def quantize(weight: np.ndarray, bits: int, block: int = 32, moment: np.ndarray | None = None) -> Quantized:
    """Round a weight [inputs, outputs] to codes of 4 or 8 bits. Raises InvalidInput for one that is not finite.

    int8 takes the scale that covers the largest weight of a block. int4 has so few levels that clipping
    the largest weight a little is often better: each block takes the candidate of least squared error.
    moment: the inputs' second moments [inputs, inputs], by which int4 is calibrated; int8 needs no such care.
    """
    if not np.isfinite(weight).all():
        raise InvalidInput("a weight is NaN or infinite; the model is broken")
    if moment is not None and bits == 4:
        return _calibrated(weight, bits, block, moment)
    inputs, outputs = weight.shape
    codes = np.empty((inputs, outputs), np.int8)
    scales = np.empty((-(-inputs // block), outputs), np.float32)
    for start in range(0, outputs, OUTPUTS_AT_ONCE):
        part = slice(start, start + OUTPUTS_AT_ONCE)
        for number, row in enumerate(range(0, inputs, block)):
            rows = np.asarray(weight[row : row + block, part], np.float32)
            scale = _best_scale(rows, bits)
            codes[row : row + block, part] = _round_to(rows, scale, bits)
            scales[number, part] = scale
    return Quantized(codes, scales, bits, block)


def _calibrated(weight: np.ndarray, bits: int, block: int, moment: np.ndarray) -> Quantized:
    inputs, outputs = weight.shape
    activity = np.diag(moment).astype(np.float64)
    activity = activity + DAMPING * max(activity.mean(), 1e-12)
    scales = np.empty((-(-inputs // block), outputs), np.float32)
    for number, row in enumerate(range(0, inputs, block)):
        rows = np.asarray(weight[row : row + block], np.float32)
        scales[number] = _best_scale(rows, bits, activity[row : row + block].astype(np.float32))
    order = np.argsort(-activity, kind="stable")
    damped = moment.astype(np.float64)
    np.fill_diagonal(damped, activity)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(torch.from_numpy(damped[np.ix_(order, order)])))
    # The upper Cholesky factor of the inverse moments, in the order of rounding: row i spreads the error of i.
    factor = torch.linalg.cholesky(inverse, upper=True).float().numpy()
    rest = np.array(weight[order], np.float32)
    codes = np.empty((inputs, outputs), np.int8)
    for start in range(0, inputs, INPUTS_AT_ONCE):
        end = min(start + INPUTS_AT_ONCE, inputs)
        errors = np.empty((end - start, outputs), np.float32)
        for i in range(start, end):
            scale = scales[order[i] // block]
            code = _round_to(rest[i], scale, bits)
            codes[order[i]] = code
            errors[i - start] = (rest[i] - code * scale) / factor[i, i]
            rest[i + 1 : end] -= np.outer(factor[i, i + 1 : end], errors[i - start])
        rest[end:] -= factor[start:end, end:].T @ errors
    return Quantized(codes, scales, bits, block)


def _best_scale(rows: np.ndarray, bits: int, importance: np.ndarray | None = None) -> np.ndarray:
    """Scale [outputs] of a block [inputs, outputs]; importance [inputs]: weights of squared errors, or equal."""
    if bits == 8:
        return _positive(np.abs(rows).max(axis=0) / 127)
    # Codes reach from -8 to 7, so the covering scale depends on the side of the largest weight.
    cover = _positive(np.maximum(rows.max(axis=0) / 7, -rows.min(axis=0) / 8))
    best, least = cover, np.full(cover.shape, np.inf, np.float32)
    for factor in CANDIDATES:
        scale = cover * factor
        error = _round_to(rows, scale, bits) * scale - rows
        with np.errstate(over="ignore"):  # of the largest floats; an infinite error keeps the covering scale
            np.square(error, out=error)
        total = error.sum(axis=0) if importance is None else importance @ error
        best = np.where(total < least, scale, best)
        least = np.minimum(total, least)
    return best


def _round_to(rows: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """The nearest codes, as float32 of the shape of `rows`."""
    codes = np.rint(rows / scale)
    limit = 2 ** (bits - 1)
    return np.clip(codes, -limit, limit - 1, out=codes)


def _positive(scale: np.ndarray) -> np.ndarray:
    """A block of zeros gets scale 1, so that nothing divides by zero."""
    return np.where(scale > 0, scale, 1).astype(np.float32)
