"""Calibrated rounding: codes that keep a layer's outputs, not its weights.

Rounding a weight makes an error that the inputs of the layer multiply. Their second moments H, summed over
a few thousand tokens, say how the errors of two inputs add up; so weights are rounded one input after the
other, the most active first, and what one loses is made good by those that are still free (GPTQ, Frantar
et al. 2023, with scales that are fixed beforehand). Nothing changes in the file or at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memory_model.export.quantize import Quantized, best_scale, check_weight, quantize, round_to

DAMPING = 0.01
"""Added to the diagonal of H, relative to its mean: inputs that were never active stay well-behaved."""
AT_ONCE = 128
"""Inputs whose corrections are applied to the rest together, as one matrix product."""


@dataclass(frozen=True)
class Calibrated:
    """Rounding with second moments [inputs, inputs] by layer name, as `export.activations` collects them.

    A layer without moments is rounded to the nearest, and int8 always is: its error is 16 times smaller.
    """

    moments: Mapping[str, np.ndarray]

    def __call__(self, name: str, weight: np.ndarray, bits: int, block: int) -> Quantized:
        """Codes and scales of a weight [inputs, outputs]."""
        moment = self.moments.get(name)
        if moment is None or bits == 8:
            return quantize(weight, bits, block)
        return calibrated(weight, bits, block, moment)


def calibrated(weight: np.ndarray, bits: int, block: int, moment: np.ndarray) -> Quantized:
    """Round a weight [inputs, outputs] whose inputs have the second moments `moment`. Raises InvalidInput."""
    check_weight(weight, bits, block)
    inputs, outputs = weight.shape
    activity = np.diag(moment).astype(np.float64)
    activity = activity + DAMPING * max(activity.mean(), 1e-12)
    scales = np.empty((-(-inputs // block), outputs), np.float32)
    for number, row in enumerate(range(0, inputs, block)):
        rows = np.asarray(weight[row : row + block], np.float32)
        scales[number] = best_scale(rows, bits, activity[row : row + block].astype(np.float32))
    order = np.argsort(-activity, kind="stable")
    factor = _correction(moment, activity, order)
    rest = np.array(weight[order], np.float32)
    codes = np.empty((inputs, outputs), np.int8)
    for start in range(0, inputs, AT_ONCE):
        end = min(start + AT_ONCE, inputs)
        errors = np.empty((end - start, outputs), np.float32)
        for i in range(start, end):
            scale = scales[order[i] // block]
            code = round_to(rest[i], scale, bits)
            codes[order[i]] = code
            errors[i - start] = (rest[i] - code * scale) / factor[i, i]
            rest[i + 1 : end] -= np.outer(factor[i, i + 1 : end], errors[i - start])
        rest[end:] -= factor[start:end, end:].T @ errors
    return Quantized(codes, scales, bits, block)


def _correction(moment: np.ndarray, activity: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Upper Cholesky factor of the inverse moments, in the order of rounding: row i spreads the error of i."""
    damped = moment.astype(np.float64)
    np.fill_diagonal(damped, activity)
    inverse = np.linalg.inv(damped[np.ix_(order, order)])
    return np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)
