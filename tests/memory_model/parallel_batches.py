"""Batches for the parallel test: texts of unequal numbers of labels, one that reads nothing, one without teacher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from memory_model.data.batches import IGNORE, Batch, Teacher
from memory_model.train.tuner import TuningPlan

PLAN = TuningPlan(
    steps=6,
    rank=4,
    alpha=4.0,
    first_layer=0,
    learning_rate=1e-2,
    warmup=2,
    checkpoint_every=3,
    codec_noise=0.0,
)
FULL = replace(PLAN, full=True, learning_rate=1e-3)


def fixed_batch(seed: int = 0, texts: int = 3) -> Batch:
    """`texts` texts of 24 tokens over 4 references; only text 1 has a teacher, text 2 reads nothing."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(0, 250, shape, generator=generator)

    ids = draw(texts, 24)
    labels = ids.clone()
    for row in range(texts):
        labels[row, : 20 - 7 * row] = IGNORE  # 4, 11, 18 labels
    memories = torch.tensor([[0, 2, -1], [3, 0, 1], [-1, -1, -1]])[:texts, None].repeat(1, 2, 1)
    memories[:, 1, 0] = -1
    chunks = (torch.arange(24) // 12).expand(texts, -1)
    matched = torch.tensor([[min(1, texts - 1), c] for c in (14, 15, 20)])
    places = torch.tensor([[0, c] for c in (24, 25, 30)])
    lengths = torch.tensor([32, 20, 9, 27])
    return Batch(
        draw(4, 32), lengths, ids, labels, memories, chunks, Teacher(draw(1, 34), places, matched), "both"
    )


class SharedBatches:
    """Fixed batches by number: 3 texts, and every third time a single one, so that a process has none."""

    def __init__(self) -> None:
        self.number = 0

    def next(self) -> Batch:
        self.number += 1
        return fixed_batch(self.number % 2, texts=1 if self.number % 3 == 0 else 3)

    def state(self) -> Any:
        return self.number

    def restore(self, state: Any) -> None:
        self.number = state
