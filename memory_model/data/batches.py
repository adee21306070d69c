"""One step's input, whatever it was made from: references, texts that read them, and a teacher's view.

Every kind of training (conversations about facts or prose, the paper's continual training, keeping what
the original model knows) is a `BatchSource`; `memory_model.data.mixture` mixes them and
`memory_model.train.tuner` knows only `Batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from torch import Tensor

from memory_model.tokenizer import Tokenizer

IGNORE = -100


@dataclass(frozen=True)
class Teacher:
    """The same answers as a teacher sees them: the reference as text, or the original model.

    ids [B, T'] are the teacher's texts; `places` [K, 2] are (row, column) in them whose prediction is
    matched by the student's prediction at `matched` [K, 2] in `Batch.ids`. original: the teacher is the model
    without its adapter, else the model as it stands.
    """

    ids: Tensor
    places: Tensor
    matched: Tensor
    original: bool = False

    def to(self, device: str) -> Teacher:
        """The same on another device."""
        return Teacher(self.ids.to(device), self.places.to(device), self.matched.to(device), self.original)


@dataclass(frozen=True)
class Batch:
    """One step's input.

    reference_ids [N, R], reference_lengths [N] (N may be 0: nothing is read); ids [B, T] text behind the
    prefix; labels [B, T], IGNORE where no loss is taken; memories [B, C, m] indices into the references,
    -1 for an empty slot; chunks [B, T] which of the C chunks a token belongs to.
    """

    reference_ids: Tensor
    reference_lengths: Tensor
    ids: Tensor
    labels: Tensor
    memories: Tensor
    chunks: Tensor
    teacher: Teacher | None = None
    task: str = ""

    def to(self, device: str) -> Batch:
        """The same on another device."""
        moved = {
            f.name: getattr(self, f.name).to(device)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **moved, teacher=self.teacher.to(device) if self.teacher else None)


class BatchSource(Protocol):
    """Where batches come from; deterministic for a seed and exactly resumable."""

    def next(self) -> Batch:
        """The next batch."""

    def state(self) -> Any:
        """Where the source stands, JSON-ready."""

    def restore(self, state: Any) -> None:
        """Go on from a state."""


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
