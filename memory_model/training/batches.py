"""Batches for tuning a model to read: references, and conversations that ask about them.

A batch writes N references once; every conversation reads five of them (or fewer) and asks about some,
so each written memory serves as the right one here and as a distractor there. References come in
families (several of one country), because real retrieval returns near misses.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from memory_model.nn.writing import pad_ids
from memory_model.references import split
from memory_model.tokenizer import Tokenizer
from memory_model.training import factbook
from memory_model.training.factbook import Question

IGNORE = -100


@dataclass(frozen=True)
class Reference:
    """A reference of the training knowledge base with what can be asked about it."""

    family: int
    text: str
    ids: list[int]
    questions: list[list[Question]]


@dataclass
class Batch:
    """One step's input.

    reference_ids [N, R], reference_lengths [N]; ids, labels [B, T] (labels IGNORE outside answers);
    memories [B, 1, m] indices into the references, -1 for an empty slot.
    """

    reference_ids: Tensor
    reference_lengths: Tensor
    ids: Tensor
    labels: Tensor
    memories: Tensor

    def to(self, device: str) -> Batch:
        """The same on another device."""
        return Batch(**{k: v.to(device) for k, v in vars(self).items()})


class ChatPieces:
    """The chat template taken apart into token pieces, rendered once, so that batches need no Jinja."""

    def __init__(self, tokenizer: Tokenizer, render: Callable[[list[dict[str, str]], bool], str]) -> None:
        mark_q, mark_a = "QUESTION", "ANSWER"
        turn = [{"role": "user", "content": mark_q}, {"role": "assistant", "content": mark_a}]
        first, rest = render(turn, False).split(mark_q)
        between, end = rest.split(mark_a)
        second = render(turn * 2, False).split(mark_a)[1].split(mark_q)[0].removeprefix(end)
        self.tokenizer = tokenizer
        stop = tokenizer.decode([tokenizer.end_of_turn_id], skip_special=False)
        self.opening = tokenizer.encode(first)
        self.reply = tokenizer.encode(between)
        self.after_answer = tokenizer.encode(end.removeprefix(stop) + second)
        self.stop = tokenizer.end_of_turn_id

    def conversation(self, turns: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
        """(ids, labels) of question-answer turns; labels hold the answers and their end-of-turn tokens."""
        ids, labels = list(self.opening), [IGNORE] * len(self.opening)
        for number, (question, answer) in enumerate(turns):
            answer_ids = [*self.tokenizer.encode(answer), self.stop]
            asked = [*(self.after_answer if number else []), *self.tokenizer.encode(question), *self.reply]
            ids += asked + answer_ids
            labels += [IGNORE] * len(asked) + answer_ids
        return ids, labels

    def prompt(self, question: str) -> list[int]:
        """Token ids of one question, ready to be answered."""
        return [*self.opening, *self.tokenizer.encode(question), *self.reply]


def references_of(
    documents: Sequence[dict[str, str]], tokenizer: Tokenizer, limit: int = 128
) -> list[Reference]:
    """All references of the documents, with their questions."""
    result = []
    for family, document in enumerate(documents):
        for text in split(document["text"], document["title"], tokenizer.count, limit):
            asks = factbook.questions(document["title"], text)
            result.append(Reference(family, text, tokenizer.encode(text), asks))
    return result


class BatchMaker:
    """Random batches from a list of references; deterministic for a seed."""

    def __init__(
        self, references: Sequence[Reference], pieces: ChatPieces, seed: int, *, written: int = 10,
        conversations: int = 10, turns: int = 3, memories: int = 5,
    ) -> None:  # fmt: skip
        self.references, self.pieces = references, pieces
        self.written, self.conversations, self.turns, self.memories = written, conversations, turns, memories
        self.random = random.Random(seed)
        self.families: dict[int, list[int]] = {}
        for number, reference in enumerate(references):
            if reference.questions:
                self.families.setdefault(reference.family, []).append(number)

    def next(self) -> Batch:
        """One batch."""
        rng = self.random
        chosen: set[int] = set()
        for family, share in zip(rng.sample(sorted(self.families), 2), (3, 3), strict=True):
            members = self.families[family]
            chosen.update(rng.sample(members, min(share, len(members))))
        while len(chosen) < self.written:
            chosen.add(rng.choice(self.families[rng.choice(sorted(self.families))]))
        written = [self.references[n] for n in sorted(chosen)]
        rows, slots = [], []
        for _ in range(self.conversations):
            count = self.memories if rng.random() < 0.8 else rng.randint(1, self.memories)
            read = rng.sample(range(len(written)), count)
            asked = [
                rng.choice(rng.choice(written[rng.choice(read)].questions))
                for _ in range(rng.randint(1, self.turns))
            ]
            rows.append(self.pieces.conversation([(q.question, q.answer) for q in asked]))
            slots.append(read + [-1] * (self.memories - count))
        reference_ids, lengths = pad_ids([r.ids for r in written])
        ids, _ = pad_ids([r[0] for r in rows])
        labels, _ = pad_ids([r[1] for r in rows], IGNORE)
        return Batch(reference_ids, lengths, ids, labels, torch.tensor(slots)[:, None])
