"""Fit the maps that turn an earlier model's memories into a later one's: `memory-model translate-memories`.

Both models write the same references. A linear map, of least squares, takes a token's old keys and values of all heads,
as their codec left them, to the new ones. Keys are turned back to position 0 before, where all tokens have one map. All
heads together tell more of the hidden states behind them than a head tells of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from memory3.codec.payload import ExplicitMemory, MemoryFormat
from memory3.codec.translation import TokenMap, Translation, at_zero
from memory3.config import ModelConfig
from memory3.errors import InvalidInput
from memory_model.nn.decoder import Decoder
from memory_model.nn.writing import MemoryWriter

_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Of each number's mean square: what keeps a map of few references from following their noise; the best is taken."""
_WRITTEN_AT_ONCE = 16


@dataclass(frozen=True)
class Closeness:
    """Of the variance of the keys and of the values that the new model writes, the share that is explained.

    Of references that were not fitted to, mean over heads. translated: by translated memories; rewritten: by those that
    the new model wrote, through its codec; untranslated: by the old ones as they are, below 0 where a mean is nearer.
    """

    translated: tuple[float, float]
    rewritten: tuple[float, float]
    untranslated: tuple[float, float]


def written_memories(
    writer: MemoryWriter, texts: Sequence[str], progress: Callable[[int], None] = lambda _: None
) -> list[ExplicitMemory]:
    """The memories of references, before any codec."""
    found: list[ExplicitMemory] = []
    for start in range(0, len(texts), _WRITTEN_AT_ONCE):
        found += writer.write(texts[start : start + _WRITTEN_AT_ONCE])
        progress(min(_WRITTEN_AT_ONCE, len(texts) - start))
    return found


def rotations(model: Decoder, config: ModelConfig, prefix: int) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin) of a reference's tokens behind a prefix, for each memory head: float32 [heads, tokens, d]."""
    memory = config.memory
    cos, sin = (one.numpy() for one in model.rotary(torch.arange(prefix, prefix + memory.reference_tokens)))
    plain = [head.layer in config.plain_layers for head in memory.heads]
    return (
        np.stack([np.ones_like(cos) if one else cos for one in plain]),
        np.stack([np.zeros_like(sin) if one else sin for one in plain]),
    )


class _Sums:
    """What least squares need of the tokens seen, float64. width: numbers of a token."""

    def __init__(self, width: int) -> None:
        self.squares, self.products = np.zeros((width + 1, width + 1)), np.zeros((width + 1, width))

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Old numbers [tokens, width + 1], the last of them one, and new ones [tokens, width]."""
        self.squares += x.T @ x
        self.products += x.T @ y

    def solved(self, ridge: float) -> np.ndarray:
        """The map [width + 1, width]; without a reason to differ, a number stays what it was."""
        # Numbers of different heads have different sizes: each is held back by its own.
        held = np.diag(np.r_[ridge * (self.squares.diagonal()[:-1] + 1e-9), 0.0])
        return np.linalg.solve(self.squares + held, self.products + held @ np.eye(*self.products.shape))


def fit_translation(
    old: Sequence[ExplicitMemory],
    new: Sequence[ExplicitMemory],
    old_format: MemoryFormat,
    new_format: MemoryFormat,
    cos: np.ndarray,
    sin: np.ndarray,
) -> tuple[Translation, Closeness]:
    """The translation, fitted to all but the last tenth of the references, and how close it is on that tenth.

    old, new: of the same references, before the codecs; cos, sin: see `rotations`. Raises InvalidInput for models that
    cut texts into other tokens or keep other heads.
    """
    if [m.tokens for m in old] != [m.tokens for m in new]:
        raise InvalidInput("the two models cut references into other tokens: their memories have no map")
    read = old_format.decode(old_format.encode(old))
    fitting = len(old) - max(1, len(old) // 10)
    heads, trying = len(new_format.config.memory.heads), fitting - max(1, fitting // 10)

    def rows(part: slice) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of some references: old numbers with a one behind them, and new ones."""
        x, y = (
            np.concatenate([at_zero(_vectors(one, heads), cos, sin) for one in found[part]]) for found in (read, new)
        )
        return np.concatenate([x, np.ones_like(x[:, :1])], axis=1), y

    sums = _Sums(2 * heads * new_format.config.head_dim)
    for start in range(0, trying, _WRITTEN_AT_ONCE):
        sums.add(*rows(slice(start, min(start + _WRITTEN_AT_ONCE, trying))))
    fresh, wanted = rows(slice(trying, fitting))
    spread = wanted.var(axis=0) + 1e-12
    lost = {ridge: float((np.square(fresh @ sums.solved(ridge) - wanted) / spread).mean()) for ridge in _RIDGES}
    sums.add(fresh, wanted)
    matrix = sums.solved(min(lost, key=lost.__getitem__)).astype(np.float32)
    translation = Translation(old_format, new_format, TokenMap(matrix, cos, sin))
    return translation, closeness(translation, read[fitting:], new[fitting:])


def closeness(translation: Translation, old: Sequence[ExplicitMemory], new: Sequence[ExplicitMemory]) -> Closeness:
    """See Closeness; old: as their codec left them, new: before theirs."""
    new_format = translation.new

    def through_codec(memories: Sequence[ExplicitMemory]) -> list[ExplicitMemory]:
        return new_format.decode(new_format.encode(memories))

    translated = through_codec([translation.memory(one) for one in old])
    heads = len(new_format.config.memory.heads)
    return Closeness(*(_explained(one, new, heads) for one in (translated, through_codec(new), old)))


def _vectors(memory: ExplicitMemory, heads: int) -> np.ndarray:
    """float64 [2, heads, tokens, d]: keys, then values, of the tokens that are there."""
    sides = np.stack([memory.keys, memory.values]).astype(np.float64)
    return np.asarray(sides.reshape(2, heads, -1, sides.shape[-1])[:, :, : memory.tokens])


def _explained(found: Sequence[ExplicitMemory], true: Sequence[ExplicitMemory], heads: int) -> tuple[float, float]:
    x, y = (np.concatenate([_vectors(one, heads) for one in part], axis=2) for part in (found, true))
    lost = np.square(x - y).sum(axis=(2, 3)) / np.square(y - y.mean(axis=2, keepdims=True)).sum(axis=(2, 3))
    keys, values = (1 - lost).mean(axis=1)
    return float(keys), float(values)
