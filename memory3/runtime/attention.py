"""How a model's attention is shared among its memories, computed after its runs, of queries that they left.

The decoder gives the queries of the heads with memory (`CacheTensor.queries`); keys are in the caches and in the
memories. A share is of all attention: the softmax is over memories and text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memory3.codec.blas import one_thread
from memory3.codec.payload import ExplicitMemory
from memory3.config import ModelConfig
from memory3.runtime.cache_layout import CacheTensor, cache_layout


class QueryRecord:
    """Queries of the tokens after which a sequence's runs gave logits, by the token's text row; the last run counts."""

    def __init__(self) -> None:
        self._by_row: dict[int, np.ndarray] = {}

    def add(self, first_row: int, queries: np.ndarray) -> None:
        """Queries [tokens, width] of these text rows, one layer with memory heads after the other: [h, G, d] of each.

        Divided by sqrt(d), before the rotary embedding. The array is kept as it is.
        """
        for row, own in enumerate(queries, first_row):
            self._by_row[row] = own

    def at(self, row: int) -> np.ndarray | None:
        """The queries [width] of a row; None where there are none."""
        return self._by_row.get(row)

    def take(self, rows: Sequence[int]) -> np.ndarray:
        """The queries of these rows, float32 [rows, width]; all are forgotten. KeyError for a row without logits."""
        found = np.stack([self._by_row[row] for row in rows]).astype(np.float32, copy=False)
        self._by_row.clear()
        return found


@dataclass(frozen=True)
class AttentionShares:
    """Shares of attention, means over the query heads that read memories.

    memories: float32 [tokens, memories]. tokens: float32 [tokens, memories, reference_tokens], of every token of a
    memory; only of heads that keep all of its tokens, 0 elsewhere.
    """

    memories: np.ndarray
    tokens: np.ndarray

    @classmethod
    def joined(cls, parts: Iterable[AttentionShares]) -> AttentionShares:
        """Of all tokens, one part after the other, about the same memories."""
        parts = list(parts)
        return cls(np.concatenate([p.memories for p in parts]), np.concatenate([p.tokens for p in parts]))


def memory_tensors(config: ModelConfig) -> tuple[CacheTensor, ...]:
    """The cache tensors with memory slots, in the order in which queries are recorded."""
    return tuple(tensor for tensor in cache_layout(config).tensors if tensor.tokens)


def attention_shares(
    config: ModelConfig,
    queries: np.ndarray,
    rows: Sequence[int],
    positions: Sequence[int],
    text_keys: Mapping[str, np.ndarray],
    memories: Sequence[ExplicitMemory],
) -> AttentionShares:
    """Shares of tokens that are the text rows `rows`, ascending, at these rotary positions.

    queries: as `QueryRecord.take` returns them. text_keys: float32 [h, R, d] of every memory tensor by its name, with
    the rows up to the last. memories: those in the slots, with arrays of the host.
    """
    group, d, count = config.group, config.head_dim, len(rows)
    width = max((m.tokens for m in memories), default=0)
    shares = np.zeros((count, len(memories)), np.float32)
    tokens = np.zeros((count, len(memories), max(width, config.memory.reference_tokens)), np.float32)
    unrotated = queries.reshape(count, -1, d)
    rotated = _rotated(unrotated, np.asarray(positions)[:, None] * config.frequencies)
    seen = rows[-1] + 1
    unseen = np.arange(rows[0] + 1, seen) > np.asarray(rows)[:, None]  # [tokens, last columns]
    first = 0
    with one_thread():
        for tensor in memory_tensors(config):
            source = unrotated if tensor.layer in config.plain_layers else rotated
            for head, (kept, start) in enumerate(zip(tensor.tokens, tensor.first_rows, strict=True)):
                own = [m.keys[start : start + min(kept, m.tokens)] for m in memories]
                keys = np.concatenate([*own, text_keys[tensor.keys][head, :seen]])
                ends = np.cumsum([len(keys) for keys in own], dtype=int)
                inside = _attention(source[:, first : first + group], keys, unseen, ends[-1] if own else 0)
                first += group
                for number, part in enumerate(np.split(inside, ends[:-1], axis=1) if own else ()):
                    shares[:, number] += part.sum(axis=1)
                    if part.shape[1] == memories[number].tokens:
                        tokens[:, number, : part.shape[1]] += part
    heads = max(first, 1)
    return AttentionShares(shares / heads, tokens / heads)


def _attention(queries: np.ndarray, keys: np.ndarray, unseen: np.ndarray, wanted: int) -> np.ndarray:
    """Attention of queries [tokens, G, d] to the first `wanted` of keys [rows, d], summed over G: [tokens, wanted].

    unseen: bool [tokens, last rows], which of the last rows come after a token.
    """
    count, group, d = queries.shape
    weights = (queries.reshape(-1, d) @ keys.T).reshape(count, group, len(keys))
    if unseen.size:
        hidden = np.broadcast_to(unseen[:, None], (count, group, unseen.shape[1]))
        weights[:, :, -unseen.shape[1] :][hidden] = -np.inf
    weights -= weights.max(axis=2, keepdims=True)
    np.exp(weights, out=weights)
    inside = weights[:, :, :wanted] / weights.sum(axis=2, keepdims=True)
    return np.asarray(inside.sum(axis=1))


def _rotated(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """The rotary embedding of [tokens, heads, d] by angles [tokens, d / 2], halves of d as its pairs."""
    cos, sin = (np.concatenate([turn(angles)] * 2, axis=1).astype(np.float32)[:, None] for turn in (np.cos, np.sin))
    half = x.shape[2] // 2
    across = np.concatenate([-x[:, :, half:], x[:, :, :half]], axis=2)
    return np.asarray(x * cos + across * sin)
