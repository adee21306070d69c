"""Logits to one token: bias, penalties, constraint, temperature, top-k, top-p, min-p, and a draw.

Knows numbers and nothing about text. Greedy is one argmax; nothing here sorts the whole vocabulary unless the
likeliest tokens in question are that many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.generate.options import Sampling

CANDIDATES = 512
"""Tokens sorted at first for top-p; all of them only if these do not reach p."""


@dataclass(frozen=True)
class Picked:
    """A token, and with the option `logprobs` how likely it was, and the likeliest ones [(id, logprob)]."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws the tokens of one answer; the same seed gives the same tokens. One thread at a time.

    text: token ids of the prompt, which the penalties count; `pick` counts what it returns.
    """

    def __init__(self, sampling: Sampling, vocabulary: int, text: Sequence[int] = ()) -> None:
        sampling.check_vocabulary(vocabulary)
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._biased = np.fromiter(sampling.logit_bias, np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        self._counts = (
            np.bincount(np.asarray(text, np.int64), minlength=vocabulary) if sampling.penalises else None
        )

    def pick(self, logits: np.ndarray) -> Picked:
        """A token from logits float32 [vocabulary], which are not changed."""
        changed = self._changed(logits)
        if self.sampling.temperature == 0:
            token = int(changed.argmax())
        else:
            tokens, weights = distribution(changed, self.sampling)
            reached = np.cumsum(weights)
            place = int(np.searchsorted(reached, self._random.random() * reached[-1], side="right"))
            place = min(place, len(weights) - 1)
            token = place if tokens is None else int(tokens[place])
        if self._counts is not None:
            self._counts[token] += 1
        if self.sampling.constraint is not None:
            self.sampling.constraint.took(token)
        if self.sampling.logprobs is None:
            return Picked(token)
        return _with_logprobs(logits, token, self.sampling.logprobs)

    def _changed(self, logits: np.ndarray) -> np.ndarray:
        """Logits after bias, penalties and constraint; the same array if none is wanted."""
        s = self.sampling
        if self._counts is None and not len(self._biased) and s.constraint is None:
            return logits
        changed = logits.copy()
        changed[self._biased] += self._bias
        if self._counts is not None:
            seen = np.flatnonzero(self._counts)
            values = changed[seen]
            values = np.where(values > 0, values / s.repetition_penalty, values * s.repetition_penalty)
            values -= s.frequency_penalty * self._counts[seen] + s.presence_penalty
            changed[seen] = values
        return changed if s.constraint is None else s.constraint.allow(changed)


def distribution(logits: np.ndarray, sampling: Sampling) -> tuple[np.ndarray | None, np.ndarray]:
    """Tokens that may be drawn and their weights, which need not sum to 1; no tokens means all, in order.

    logits: float32 [vocabulary], after bias and penalties. sampling: with a temperature above 0.
    """
    s = sampling
    tokens: np.ndarray | None = None
    if 0 < s.top_k < len(logits):
        tokens = likeliest(logits, s.top_k)
        logits = logits[tokens]
    # In float64 a temperature near 0 does not overflow; its least value keeps the division defined.
    weights = np.exp((logits.astype(np.float64) - float(logits.max())) / max(s.temperature, 1e-6))
    if s.top_p < 1:
        kept = _nucleus(weights, s.top_p)
        tokens, weights = kept if tokens is None else tokens[kept], weights[kept]
    if s.min_p > 0:
        kept = np.flatnonzero(weights >= s.min_p * weights.max())
        tokens, weights = kept if tokens is None else tokens[kept], weights[kept]
    return tokens, weights


def likeliest(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` largest values, in order of place; of equal ones the first."""
    if count >= len(values):
        return np.arange(len(values))
    least = np.partition(values, len(values) - count)[len(values) - count]
    larger = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: count - len(larger)]
    return np.sort(np.concatenate([larger, equal]))


def _nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """The fewest places, likeliest first, whose weights reach top_p of all."""
    wanted = top_p * weights.sum()
    for count in (min(CANDIDATES, len(weights)), len(weights)):
        likely = likeliest(weights, count)
        likely = likely[np.argsort(-weights[likely], kind="stable")]
        total = np.cumsum(weights[likely])
        if total[-1] >= wanted:
            break
    return likely[: int(np.searchsorted(total, wanted)) + 1]


def _with_logprobs(logits: np.ndarray, token: int, count: int) -> Picked:
    """Of the model's own distribution, whatever the options made of it."""
    largest = float(logits.max())
    total = largest + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    top = likeliest(logits, count) if count else np.empty(0, np.int64)
    top = top[np.argsort(-logits[top], kind="stable")]
    return Picked(token, float(logits[token]) - total, tuple((int(t), float(logits[t]) - total) for t in top))
