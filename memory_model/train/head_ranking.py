"""Find the heads that read: what the answers lose when one head's memory is taken away.

In a converted model a small part of the heads does the reading (paper, remark on memory heads). Leaving one head out
undervalues heads that do the same work, since the other one steps in; so heads are then added one by one, each the one
that helps most.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from memory_model.config import MemoryHead
from memory_model.data.batches import Batch
from memory_model.errors import CorruptFile
from memory_model.nn.decoder import Decoder
from memory_model.nn.writing import write_memories
from memory_model.train.losses import read_loss


class HeadRuler:
    """Measures what heads' memories are worth on batches, whose memories are written once."""

    @torch.no_grad()
    def __init__(self, model: Decoder, batches: Sequence[Batch], prefix: Sequence[int]) -> None:
        self.model, self.batches, self.prefix = model, batches, prefix
        self.heads = model.config.memory.heads
        self._starts = dict(zip(self.heads, model.config.memory.offsets, strict=True))
        self._half = torch.autocast(batches[0].ids.device.type, dtype=torch.bfloat16)
        with self._half:
            self._written = [
                write_memories(model, b.reference_ids, b.reference_lengths, prefix) for b in batches
            ]

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
    """Losses (nats a token) that were measured so far, heads written `layer.head`.

    losses: without each head; chosen: with the heads up to and including this one.
    """

    model_id: str
    batches: int
    loss_whole: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)
    chosen: dict[str, float] = field(default_factory=dict)

    @classmethod
    def begun(cls, path: Path, model_id: str, batches: int) -> Ranking:
        """What `path` holds of the same model and sizes, else an empty ranking; raises CorruptFile."""
        new = cls(model_id, batches)
        if not path.is_file():
            return new
        try:
            found = cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise CorruptFile(f"{path} is no file of `memory-model rank-heads`: {error}") from error
        return found if (found.model_id, found.batches) == (model_id, batches) else new

    def save(self, path: Path) -> None:
        """Write the file, to a temporary name first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    def ranked(self) -> list[tuple[str, float]]:
        """(head, loss without it), the head that is missed most first."""
        return sorted(self.losses.items(), key=lambda entry: -entry[1])


def rank(ruler: HeadRuler, found: Ranking, select: int) -> Iterator[None]:
    """Measure what `found` has not got yet, into it, yielding after each measurement.

    select: how many heads are chosen one by one.
    """
    heads = {f"{h.layer}.{h.head}": h for h in ruler.heads}
    if not found.losses:
        found.loss_whole = round(ruler.loss(ruler.heads), 4)
    for name, head in heads.items():
        if name not in found.losses:
            found.losses[name] = round(ruler.loss([h for h in ruler.heads if h != head]), 4)
            yield
    ranked = [heads[name] for name, _ in found.ranked()]
    while len(found.chosen) < min(select, len(ranked)):
        have = [heads[name] for name in found.chosen]
        tried = [(ruler.loss([*have, head]), head) for head in ranked if head not in have]
        loss, best = min(tried)
        found.chosen[f"{best.layer}.{best.head}"] = round(loss, 4)
        yield
