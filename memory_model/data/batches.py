"""One step's input, whatever it was made from: references and texts that read them.

Every kind of training (conversations about facts or prose, the paper's continual training, preserving the original
model) is a `BatchSource`; `Mixture` mixes them and `memory_model.train.tuner` sees only `Batch`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any, Protocol

from torch import Tensor

from memory3.errors import InvalidInput
from memory3.text.chat import ChatTemplate

IGNORE = -100


@dataclass(frozen=True)
class Batch:
    """One batch.

    reference_ids [N, R], reference_lengths [N] (N may be 0: nothing is read); ids [B, T] text behind the prefix;
    labels [B, T], IGNORE where no loss is taken; memories [B, C, m] indices into the references, -1 for an empty slot;
    chunks [B, T] which of the C chunks a token belongs to. kept [K, 2]: (row, column) where the prediction should be
    that of the model without its adapter: at the same token, or, for distillation, at taught [K, 2] of teacher_ids
    [S, U], texts that read no memory because they contain the references. preferences: rows 2n and 2n + 1 end in two
    answers to the same, of which the first is preferred.
    """

    reference_ids: Tensor
    reference_lengths: Tensor
    ids: Tensor
    labels: Tensor
    memories: Tensor
    chunks: Tensor
    kept: Tensor | None = None
    task: str = ""
    preferences: bool = False
    teacher_ids: Tensor | None = None
    taught: Tensor | None = None

    def to(self, device: str) -> Batch:
        """The same on another device."""
        moved: dict[str, Any] = {n: x.to(device) for n, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **moved)


def buckets(lengths: Sequence[int], *, fixed: int = 0, most: int = 8192) -> list[list[int]]:
    """Rows of like lengths together: lists of row numbers, the shortest first, that cost least to compute.

    A list costs its rows times its longest length, and `fixed` tokens for being one more; none has more than
    `most` tokens, but for a single row that is longer.
    """
    order = sorted(range(len(lengths)), key=lambda n: lengths[n])
    best: list[tuple[float, int]] = [(0.0, 0)]  # of the first rows in order: cost, start of the last list
    for end in range(1, len(order) + 1):
        longest = lengths[order[end - 1]]
        starts = [s for s in range(end) if s == end - 1 or (end - s) * longest <= most]
        best.append(min((best[s][0] + (end - s) * longest + fixed, s) for s in starts))
    made: list[list[int]] = []
    end = len(order)
    while end:
        start = best[end][1]
        made.append(order[start:end])
        end = start
    return made[::-1]


class BatchSource(Protocol):
    """Where batches come from; deterministic for a seed and exactly resumable."""

    def next(self) -> Batch:
        """The next batch."""

    def state(self) -> Any:
        """The source's position, JSON-ready."""

    def restore(self, state: Any) -> None:
        """Go on from a state."""


def conversation_tokens(chat: ChatTemplate, turns: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
    """(ids, labels) of question-answer turns; labels hold the answers and their end-of-turn tokens."""
    roles = ("user", "assistant")
    messages = [{"role": r, "content": t} for turn in turns for r, t in zip(roles, turn, strict=True)]
    prompt, stop = chat.prompt(messages, add_generation_prompt=False), chat.tokenizer.end_of_turn_id
    ids: list[int] = []
    labels: list[int] = []
    contents = 0
    for content, run in groupby(zip(prompt.content, prompt.ids, strict=True), key=itemgetter(0)):
        tokens = [token for _, token in run]
        learned = 0
        contents += content
        if contents and contents % 2 == 0:
            learned = len(tokens) if content else tokens.index(stop) + 1 if stop in tokens else 0
        if contents == len(messages) and not content:
            tokens = tokens[:learned]
        ids += tokens
        labels += tokens[:learned] + [IGNORE] * (len(tokens) - learned)
    if ids[-1] != stop:
        ids, labels = [*ids, stop], [*labels, stop]
    return ids, labels


class Mixture:
    """Draws each batch from one of its sources, by weight. Deterministic for a seed, exactly resumable."""

    def __init__(self, sources: Mapping[str, tuple[float, BatchSource]], seed: int) -> None:
        """Raises InvalidInput when there is no source or a weight is not positive."""
        if not sources or any(weight <= 0 for weight, _ in sources.values()):
            raise InvalidInput("a mixture needs a task, and a weight above 0 for each, such as facts:4")
        self.sources = dict(sources)
        self.random = random.Random(seed)

    def next(self) -> Batch:
        """A batch of one of the sources."""
        names = list(self.sources)
        name = self.random.choices(names, [self.sources[n][0] for n in names])[0]
        return self.sources[name][1].next()

    def state(self) -> Any:
        """The state of the mixture and of each of its sources."""
        sources = {name: source.state() for name, (_, source) in self.sources.items()}
        return {"mixture": self.random.getstate(), "sources": sources}

    def restore(self, state: Any) -> None:
        """Go on from a state of a mixture with the same sources; raises InvalidInput for another."""
        if set(state["sources"]) != set(self.sources):
            raise InvalidInput(f"it mixed {sorted(state['sources'])}, now {sorted(self.sources)}: use another --out")
        self.random.setstate(state["mixture"])
        for name, (_, source) in self.sources.items():
            source.restore(state["sources"][name])


def parse_weights(text: str, known: Collection[str]) -> dict[str, float]:
    """`facts:4,prose` as {"facts": 4.0, "prose": 1.0}.

    Raises InvalidInput for an unknown task, one that is named twice, and a weight that is not finite and above 0.
    """
    weights: dict[str, float] = {}
    for entry in text.split(","):
        task, _, weight = entry.strip().partition(":")
        if task not in known:
            raise InvalidInput(f"--mixture names no task {task!r}: choose from {', '.join(known)}")
        if task in weights:
            raise InvalidInput(f"--mixture names {task} twice: add its weights up")
        try:
            weights[task] = float(weight or 1)
        except ValueError as error:
            raise InvalidInput(f"--mixture {entry!r}: write TASK:WEIGHT, such as facts:4") from error
        if not 0 < weights[task] < inf:
            raise InvalidInput(f"--mixture {entry!r}: a task needs a weight above 0, such as facts:4")
    return weights
