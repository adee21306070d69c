"""Find the heads that read: prune the heads whose memories the answers depend on least, a quarter at a time.

In a converted model a small part of the heads does the reading (paper, remark on memory heads). A head's importance is
what the answers' loss changes by, to first order, when its memories' values are scaled towards zero: the absolute sum
of value x gradient over a conversation. One backward pass gives it for all heads at once. Heads that do the same work
replace each other, so the importance is measured again after each round of pruning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from memory3.config import MemoryHead
from memory_model.data.batches import Batch
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.fused import products
from memory_model.nn.writing import write_memories
from memory_model.train.losses import read_loss

PRUNED_SHARE = 0.25
"""Share of the remaining heads that a round removes."""


@dataclass(frozen=True)
class Round:
    """One round. loss: of the answers (nats a token) with the heads that remained; heads: most important first."""

    loss: float
    heads: tuple[MemoryHead, ...]


@dataclass
class Ranking:
    """Rounds of pruning, from all heads to the selected ones."""

    rounds: list[Round] = field(default_factory=list)

    @property
    def selected(self) -> tuple[MemoryHead, ...]:
        """The heads of the last round, by layer."""
        return tuple(sorted(self.rounds[-1].heads))


class HeadRanking:
    """Importance of memory heads on batches whose memories are written once."""

    @torch.no_grad()
    def __init__(self, model: Decoder, batches: Sequence[Batch], prefix: Sequence[int]) -> None:
        self.model, self.batches, self.prefix = model, batches, prefix
        self.heads = model.config.memory.heads
        self._slots = dict(zip(self.heads, model.config.memory.offsets, strict=True))
        self._half = products(batches[0].ids.device.type)
        with self._half:
            written = [write_memories(model, b.reference_ids, b.reference_lengths, prefix) for b in batches]
        kind = model.embed_tokens.weight.dtype
        self._written = [MemoryBatch(m.keys.to(kind), m.values.to(kind), m.valid) for m in written]

    def measure(self, heads: Sequence[MemoryHead]) -> Round:
        """The loss with only these heads' memories, and the heads by importance."""
        total = 0.0
        importance = torch.zeros(len(self.heads))
        for batch, memory in zip(self.batches, self._written, strict=True):
            loss, own = self._of_batch(batch, memory, heads)
            total += loss / len(self.batches)
            importance += own.cpu() / len(self.batches)
        order = sorted(heads, key=lambda head: -float(importance[self.heads.index(head)]))
        return Round(round(total, 4), tuple(order))

    def _of_batch(self, batch: Batch, memory: MemoryBatch, heads: Sequence[MemoryHead]) -> tuple[float, Tensor]:
        kept = torch.zeros(memory.valid.shape[1], dtype=torch.bool, device=memory.valid.device)
        for head in heads:
            kept[self._slots[head] : self._slots[head] + head.tokens] = True
        read = replace(memory, valid=memory.valid & kept).select(batch.memories)
        values = read.values.requires_grad_()
        with torch.enable_grad(), self._half:
            loss = read_loss(self.model, batch, self.prefix, replace(read, values=values))
            (gradient,) = torch.autograd.grad(loss, values)
        felt_BM = (gradient.float() * values.detach().float()).sum((1, 2, -1))
        sizes = [head.tokens for head in self.heads]
        own = torch.stack([part.sum(1).abs().mean() for part in felt_BM.split(sizes, dim=1)])
        return float(loss.detach()), own


def prune(ranking: HeadRanking, select: int, progress: Callable[[Round], None] = lambda _: None) -> Ranking:
    """Prune to `select` heads; progress: called after each round."""
    found, heads = Ranking(), list(ranking.heads)
    while True:
        found.rounds.append(measured := ranking.measure(heads))
        progress(measured)
        if len(heads) <= select:
            return found
        heads = list(measured.heads[: max(select, int(len(heads) * (1 - PRUNED_SHARE)))])
