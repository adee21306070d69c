"""Batches that keep the model a language model: plain text, no memory, the original model as teacher."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from memory_model.data.batches import IGNORE, Batch, Teacher
from memory_model.data.corpus.passages import Passage
from memory_model.tokenizer import Tokenizer


class KeepingBatches:
    """Windows of running text in which the student predicts what the original model predicts.

    Passages are joined in their order to windows of `window` tokens. Only `matched` positions of each
    window are compared: logits over a whole vocabulary are dear, and neighbouring positions say the same.
    """

    task = "keeping"

    def __init__(
        self, passages: Sequence[Passage], tokenizer: Tokenizer, seed: int, *, rows: int = 4, window: int = 256,
        matched: int = 96,
    ) -> None:  # fmt: skip
        self.passages, self.tokenizer = passages, tokenizer
        self.rows, self.window, self.matched = rows, window, matched
        self.random = random.Random(seed)

    def next(self) -> Batch:
        """One batch; no references, no labels."""
        ids = torch.tensor([self._row() for _ in range(self.rows)])
        columns = sorted(self.random.sample(range(self.window), self.matched))
        places = torch.tensor([(row, column) for row in range(self.rows) for column in columns])
        none = torch.full((self.rows, 1, 1), -1)
        empty = torch.zeros(0, 1, dtype=torch.long)
        return Batch(
            empty, empty[:, 0], ids, torch.full_like(ids, IGNORE), none, torch.zeros_like(ids),
            Teacher(ids, places, places, original=True), self.task,
        )  # fmt: skip

    def _row(self) -> list[int]:
        ids: list[int] = []
        number = self.random.randrange(len(self.passages))
        while len(ids) < self.window:
            ids += self.tokenizer.encode(self.passages[number % len(self.passages)].text + "\n\n")
            number += 1
        return ids[: self.window]

    def state(self) -> Any:
        """The random generator's state."""
        return self.random.getstate()

    def restore(self, state: Any) -> None:
        """Go on from a state."""
        kind, numbers, gauss = state
        self.random.setstate((kind, tuple(numbers), gauss))
