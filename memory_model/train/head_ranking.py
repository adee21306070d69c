"""Find the heads that read: what the answers lose when one head's memory is taken away.

In a converted model a small part of the heads does the reading (paper, remark on memory heads). Leaving one head out
undervalues heads that do the same work, since the other one steps in; so heads are then added one by one, each the one
that helps most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import torch

from memory3.config import MemoryHead
from memory_model.data.batches import Batch
from memory_model.nn.decoder import Decoder
from memory_model.nn.fused import products
from memory_model.nn.writing import write_memories
from memory_model.train.losses import read_loss


class HeadRuler:
    """Measures what heads' memories are worth on batches, whose memories are written once."""

    @torch.no_grad()
    def __init__(self, model: Decoder, batches: Sequence[Batch], prefix: Sequence[int]) -> None:
        self.model, self.batches, self.prefix = model, batches, prefix
        self.heads = model.config.memory.heads
        self._starts = dict(zip(self.heads, model.config.memory.offsets, strict=True))
        self._half = products(batches[0].ids.device.type)
        with self._half:
            self._written = [write_memories(model, b.reference_ids, b.reference_lengths, prefix) for b in batches]

    @torch.no_grad()
    def loss(self, heads: Collection[MemoryHead]) -> float:
        """The answers' loss (nats a token) when only these heads' memories are read."""
        total = 0.0
        for batch, memory in zip(self.batches, self._written, strict=True):
            kept = torch.zeros(memory.valid.shape[1], dtype=torch.bool, device=memory.valid.device)
            for head in heads:
                kept[self._starts[head] : self._starts[head] + head.tokens] = True
            reduced = replace(memory, valid=memory.valid & kept).select(batch.memories)
            with self._half:
                total += float(read_loss(self.model, batch, self.prefix, reduced))
        return total / len(self.batches)


@dataclass
class Ranking:
    """Losses (nats a token), heads written `layer.head`.

    losses: without each head, the one that is missed most first; chosen: with the heads up to and including this one.
    """

    loss_whole: float
    losses: dict[str, float] = field(default_factory=dict)
    chosen: dict[str, float] = field(default_factory=dict)


def rank(ruler: HeadRuler, select: int, progress: Callable[[], None] = lambda: None) -> Ranking:
    """Measure every head, then choose `select` of them one by one; progress: called after each head."""
    found = Ranking(round(ruler.loss(ruler.heads), 4))
    without = {}
    for head in ruler.heads:
        without[head] = round(ruler.loss([h for h in ruler.heads if h != head]), 4)
        progress()
    ranked = sorted(without, key=lambda head: -without[head])
    found.losses = {_name(head): without[head] for head in ranked}
    have: list[MemoryHead] = []
    while len(have) < min(select, len(ranked)):
        loss, best = min((ruler.loss([*have, head]), head) for head in ranked if head not in have)
        have.append(best)
        found.chosen[_name(best)] = round(loss, 4)
        progress()
    return found


def _name(head: MemoryHead) -> str:
    return f"{head.layer}.{head.head}"
