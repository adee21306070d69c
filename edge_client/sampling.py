"""Logits to one token: greedy, or temperature with top-p (nucleus) sampling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memory_model.errors import InvalidInput

CANDIDATES = 512
"""Tokens sorted at first for top-p; all of them only if these do not reach p."""


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; top_p in (0, 1] keeps the fewest likeliest tokens that reach p."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that mean nothing (NaN included)."""
        if not 0 <= self.temperature <= 100:
            raise InvalidInput(f"temperature must be 0 to 100, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InvalidInput(f"top_p must be above 0 and at most 1, not {self.top_p}")


class Sampler:
    """Draws tokens; the same seed gives the same tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def pick(self, logits: np.ndarray) -> int:
        """A token id from logits float32 [vocabulary]."""
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / max(self.sampling.temperature, 1e-6)
        weights = np.exp(scaled - scaled.max())
        weights /= weights.sum()
        if self.sampling.top_p == 1:
            return int(self._random.choice(len(weights), p=weights))
        tokens = _nucleus(weights, self.sampling.top_p)
        kept = weights[tokens]
        return int(self._random.choice(tokens, p=kept / kept.sum()))


def _nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """The fewest tokens, likeliest first, whose weights reach top_p."""
    for count in (min(CANDIDATES, len(weights)), len(weights)):
        likely = np.argpartition(-weights, count - 1)[:count]
        likely = likely[np.argsort(-weights[likely], kind="stable")]
        total = np.cumsum(weights[likely])
        if total[-1] >= top_p or count == len(weights):
            break
    return likely[: int(np.searchsorted(total, top_p)) + 1]
