"""Find the heads that read: what the answers lose when one head's memory is taken away.

Paper, remark on memory heads: in a converted model a small part of the heads does the reading. A model
whose budget lists every candidate head is measured once with all memories and once without each head's;
the loss says what the head carries. `tables` then spends a fixed number of vectors on the best heads in
different ways, to be compared by the same measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from memory_model.config import MemoryConfig, MemoryHead
from memory_model.nn.model import Decoder
from memory_model.nn.writing import write_memories
from memory_model.training.adapt import read_loss
from memory_model.training.batches import Batch


@dataclass(frozen=True)
class HeadLoss:
    """One head of the budget and a loss of the answers (nats a token) that was measured for it."""

    head: MemoryHead
    loss_without: float


@torch.no_grad()
def rank_heads(
    model: Decoder, batches: Sequence[Batch], prefix: Sequence[int], progress: Callable[[], None] | None = None
) -> tuple[float, list[HeadLoss]]:  # fmt: skip
    """(loss with all heads, heads by loss without them, the most needed first)."""
    config = model.config.memory
    total = 0.0
    without = torch.zeros(len(config.heads))
    for batch in batches:
        with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16):
            written = write_memories(model, batch.reference_ids, batch.reference_lengths, prefix)
            total += float(read_loss(model, batch, prefix, written.select(batch.memories)))
            for number, (start, head) in enumerate(zip(config.offsets, config.heads, strict=True)):
                valid = written.valid.clone()
                valid[:, start : start + head.tokens] = False
                reduced = replace(written, valid=valid).select(batch.memories)
                without[number] += float(read_loss(model, batch, prefix, reduced))
                if progress is not None:
                    progress()
    losses = [HeadLoss(h, float(w) / len(batches)) for h, w in zip(config.heads, without, strict=True)]
    return total / len(batches), sorted(losses, key=lambda entry: -entry.loss_without)


def tables(ranking: Iterable[HeadLoss], vectors: int, reference_tokens: int = 128) -> dict[str, MemoryConfig]:
    """Budgets of at most `vectors` vectors: the best n heads with as many tokens as fit, for several n."""
    heads = [entry.head for entry in ranking]
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
def select_heads(
    model: Decoder,
    batches: Sequence[Batch],
    prefix: Sequence[int],
    pool: Sequence[MemoryHead],
    count: int,
    progress: Callable[[list[HeadLoss]], None] | None = None,
) -> list[HeadLoss]:
    """`count` heads of the pool, each the one that lowers the loss most beside those chosen before it.

    Leaving one head out undervalues heads that do the same work, since the other one steps in; adding heads
    one by one does not. `loss_without` of an entry is the loss with the heads up to and including it.
    """
    config = model.config.memory
    starts = dict(zip(config.heads, config.offsets, strict=True))
    with torch.autocast(batches[0].ids.device.type, dtype=torch.bfloat16):
        written = [write_memories(model, b.reference_ids, b.reference_lengths, prefix) for b in batches]

        def loss_with(heads: Sequence[MemoryHead]) -> float:
            total = 0.0
            for batch, memory in zip(batches, written, strict=True):
                kept = torch.zeros(memory.valid.shape[1], dtype=torch.bool, device=memory.valid.device)
                for head in heads:
                    kept[starts[head] : starts[head] + head.tokens] = True
                reduced = replace(memory, valid=memory.valid & kept).select(batch.memories)
                total += float(read_loss(model, batch, prefix, reduced))
            return total / len(batches)

        chosen: list[HeadLoss] = []
        while len(chosen) < min(count, len(pool)):
            have = [entry.head for entry in chosen]
            tried = [HeadLoss(head, loss_with([*have, head])) for head in pool if head not in have]
            chosen.append(min(tried, key=lambda entry: entry.loss_without))
            if progress is not None:
                progress(chosen)
    return chosen


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
