"""Find the heads that read: what the answers lose when one head's memory is taken away.

Paper, remark on memory heads: in a converted model a small part of the heads does the reading. A model
whose budget lists every candidate head is measured once with all memories and once without each head's;
the loss says what the head carries. `tables` then spends a fixed number of vectors on the best heads in
different ways, to be compared by the same measure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from memory_model.config import MemoryConfig, MemoryHead
from memory_model.data.batches import Batch
from memory_model.nn.decoder import Decoder
from memory_model.nn.writing import write_memories
from memory_model.train.tuner import read_loss


@dataclass(frozen=True)
class HeadLoss:
    """One head of the budget and a loss of the answers (nats a token) that was measured for it."""

    head: MemoryHead
    loss: float


class HeadRuler:
    """Measures what heads' memories are worth on batches, whose memories are written once."""

    @torch.no_grad()
    def __init__(self, model: Decoder, batches: Sequence[Batch], prefix: Sequence[int]) -> None:
        self.model, self.batches, self.prefix = model, batches, prefix
        self.heads = model.config.memory.heads
        self._starts = dict(zip(self.heads, model.config.memory.offsets, strict=True))
        with self._half():
            self._written = [
                write_memories(model, b.reference_ids, b.reference_lengths, prefix) for b in batches
            ]

    def _half(self) -> torch.autocast:
        return torch.autocast(self.batches[0].ids.device.type, dtype=torch.bfloat16)

    @torch.no_grad()
    def loss(self, heads: Collection[MemoryHead]) -> float:
        """The answers' loss when only these heads' memories are read."""
        total = 0.0
        for batch, memory in zip(self.batches, self._written, strict=True):
            kept = torch.zeros(memory.valid.shape[1], dtype=torch.bool, device=memory.valid.device)
            for head in heads:
                kept[self._starts[head] : self._starts[head] + head.tokens] = True
            reduced = replace(memory, valid=memory.valid & kept).select(batch.memories)
            with self._half():
                total += float(read_loss(self.model, batch, self.prefix, reduced))
        return total / len(self.batches)

    def without(self, heads: Iterable[MemoryHead]) -> Iterator[HeadLoss]:
        """For each of the heads the loss without it alone, as soon as it is measured."""
        for head in heads:
            yield HeadLoss(head, self.loss([h for h in self.heads if h != head]))

    def chosen(
        self, pool: Sequence[MemoryHead], count: int, before: Sequence[MemoryHead] = ()
    ) -> Iterator[HeadLoss]:
        """Up to `count` heads of the pool, those of `before` counted, each the one that helps most beside the others.

        Leaving one head out undervalues heads that do the same work, since the other one steps in; adding heads
        one by one does not. The loss of an entry is that with the heads up to and including it.
        """
        have = list(before)
        while len(have) < min(count, len(pool)):
            tried = [HeadLoss(head, self.loss([*have, head])) for head in pool if head not in have]
            best = min(tried, key=lambda entry: entry.loss)
            have.append(best.head)
            yield best


def tables(heads: Sequence[MemoryHead], vectors: int, reference_tokens: int = 128) -> dict[str, MemoryConfig]:
    """Budgets of at most `vectors` vectors: the first n heads with as many tokens as fit, for several n."""
    result = {}
    for count in range(1, len(heads) + 1):
        tokens = min(reference_tokens, vectors // 2 // count)
        if tokens >= 8 and (tokens < reference_tokens or count * 2 * tokens * 1.2 > vectors):
            table = tuple(MemoryHead(h.layer, h.head, tokens) for h in heads[:count])
            result[f"{count} heads x {tokens} tokens"] = MemoryConfig(
                heads=table, reference_tokens=reference_tokens
            )
    return result


@torch.no_grad()
def loss_of_table(
    model: Decoder, table: MemoryConfig, batches: Sequence[Batch], prefix: Sequence[int]
) -> float:
    """The answers' loss when memories are written and read with another budget, same weights."""
    before = model.config
    model.set_memory(before.with_memory(table))
    try:
        total = 0.0
        for batch in batches:
            with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16):
                written = write_memories(model, batch.reference_ids, batch.reference_lengths, prefix)
                total += float(read_loss(model, batch, prefix, written.select(batch.memories)))
        return total / len(batches)
    finally:
        model.set_memory(before)
