"""Batches of running text: continual training (paper 3.6), its warm-up, and preserving the original model.

In continual training each chunk reads its own reference and those of the four chunks before it, so that C chunks
need C references and yet every chunk has five memories. The warm-up has the same sequences without references: the
paper found that a model which cannot read yet learns to ignore its memories.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from memory3.text.chat import ChatTemplate
from memory_model.data.batches import IGNORE, Batch, conversation_tokens
from memory_model.data.passages import Passage
from memory_model.data.retrieved import RetrievedSequences
from memory_model.nn.writing import pad_ids


class ContinualBatches:
    """Every sequence once an epoch, in an order of that epoch; a state is the number of sequences drawn.

    rows: sequences a batch. warmup: without memory (the paper's first stage).
    """

    def __init__(self, data: RetrievedSequences, seed: int, *, rows: int = 2, warmup: bool = False) -> None:
        self.data, self.seed, self.rows, self.warmup = data, seed, rows, warmup
        self.task = "warmup" if warmup else "continual"
        self.drawn = 0
        self._order: tuple[int, np.ndarray] | None = None

    def next(self) -> Batch:
        """`rows` sequences; the loss is taken on all tokens but the first, which nothing precedes."""
        numbers = [self._sequence(self.drawn + row) for row in range(self.rows)]
        self.drawn += self.rows
        ids = torch.from_numpy(self.data.sequences[numbers].astype(np.int64))
        count = ids.shape[1] // self.data.chunk_tokens
        chunks = torch.arange(count).repeat_interleave(self.data.chunk_tokens).expand_as(ids).contiguous()
        chosen = self.data.chosen[numbers]
        written = [] if self.warmup else sorted({int(n) for n in chosen.flat} - {-1})
        memories = torch.full((self.rows, count, self.data.shared), -1)
        if not written:
            empty = torch.zeros(0, 1, dtype=torch.long)
            return Batch(empty, empty[:, 0], ids, ids.clone(), memories, chunks, task=self.task)
        indices = {number: index for index, number in enumerate(written)} | {-1: -1}
        own = torch.tensor([[indices[int(n)] for n in row] for row in chosen])
        for back in range(min(self.data.shared, count)):
            memories[:, back:, back] = own[:, : count - back]
        texts = [self.data.references[number] for number in written]
        reference_ids, lengths = pad_ids([text[text >= 0].tolist() for text in texts])
        return Batch(reference_ids, lengths, ids, ids.clone(), memories, chunks, task=self.task)

    def _sequence(self, drawn: int) -> int:
        epoch, index = divmod(drawn, len(self.data.sequences))
        if self._order is None or self._order[0] != epoch:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.data.sequences))
            self._order = (epoch, order)
        return int(self._order[1][index])

    def state(self) -> Any:
        """How many sequences were drawn."""
        return {"drawn": self.drawn}

    def restore(self, state: Any) -> None:
        """Go on from a state."""
        self.drawn = int(state["drawn"])


class KeepingBatches:
    """Windows of running text and of small talk in which the student predicts what the original model predicts.

    Windows of `window` tokens; half of them hold requests where there are any, so that a model which learns to refuse
    still returns a greeting. Only `kept` positions of each window are compared: neighbouring ones are redundant.
    """

    task = "keeping"
    rows, window, kept = 4, 256, 96

    def __init__(
        self, passages: Sequence[Passage], chat: ChatTemplate, seed: int, requests: Sequence[tuple[str, str]] = ()
    ) -> None:
        """requests: what users ask that needs no knowledge, with answers."""
        self.passages, self.chat, self.requests = passages, chat, requests
        self.random = random.Random(seed)

    def next(self) -> Batch:
        """One batch; no references, no labels."""
        ids = torch.tensor([self._row() for _ in range(self.rows)])
        columns = sorted(self.random.sample(range(self.window), self.kept))
        positions = torch.tensor([(row, column) for row in range(self.rows) for column in columns])
        none = torch.full((self.rows, 1, 1), -1)
        empty = torch.zeros(0, 1, dtype=torch.long)
        labels, chunks = torch.full_like(ids, IGNORE), torch.zeros_like(ids)
        return Batch(empty, empty[:, 0], ids, labels, none, chunks, positions, self.task)

    def _row(self) -> list[int]:
        ids: list[int] = []
        if self.requests and self.random.random() < 0.5:
            turns: list[tuple[str, str]] = []
            while len(ids) < self.window:
                turns.append(self.random.choice(self.requests))
                ids = conversation_tokens(self.chat, turns)[0]
            return ids[: self.window]
        number = self.random.randrange(len(self.passages))
        while len(ids) < self.window:
            ids += self.chat.tokenizer.encode(self.passages[number % len(self.passages)].text + "\n\n")
            number += 1
        return ids[: self.window]

    def state(self) -> Any:
        """The random generator's state."""
        return self.random.getstate()

    def restore(self, state: Any) -> None:
        """Go on from a state."""
        self.random.setstate(state)
