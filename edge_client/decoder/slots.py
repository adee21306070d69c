"""`Slots`: which sequence has which slot of the caches, and what is copied when another one needs it."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from memory3.codec.payload import ExplicitMemory
from memory3.runtime.attention import QueryRecord
from memory3.runtime.backend import DecoderRunner, RunInput, TextRows

QUANTUM = 64
"""Reads after which a decoding sequence gives its slot to one that waits for a slot."""
IDLE_S = 0.1
"""A sequence that read nothing for so long gives its slot at once."""


@dataclass(eq=False)
class SequenceState:
    """What the decoder keeps of one sequence. Only the thread of its `Scheduler` changes it, but for the last five.

    tokens: the text in the cache, without the prefix. memories: those in the memory slots; memory: whether it has
    those. slot: of the caches, or parked: its rows on the way to one; neither at the beginning. reads: since it got
    the slot; last_read: when the last one was. running: whether the background reads it now. drafted: tokens whose rows
    are computed behind the text but that are not part of it, each with the logits [1, vocabulary] after it.
    drafted_tokens: how many there were so far; accepted_tokens: those of them that became text.

    record: of the queries of its tokens with logits, where an answer has citations. source: whose memories it reads,
    such as a knowledge base. per_step: None, or that it reads in the background, so many tokens for every step of the
    others. over: whether its answer is. reading: whether somebody waits for it.
    """

    tokens: list[int] = field(default_factory=list)
    memories: tuple[ExplicitMemory, ...] = ()
    memory: bool = False
    slot: int | None = None
    parked: TextRows | None = None
    reads: int = 0
    last_read: float = 0.0
    running: bool = False
    record: QueryRecord | None = None
    drafted: deque[tuple[int, np.ndarray]] = field(default_factory=deque)
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    source: object = None
    per_step: float | None = None
    over: bool = True
    reading: bool = False


class Slots:
    """The caches of a runner and who has them. One thread at a time.

    prefix: tokens with which every sequence begins; they are read once. first_position: of the text behind them.
    context: rows of a slot.
    """

    def __init__(
        self, runner: DecoderRunner, parallel: int, context: int, prefix: Sequence[int], first_position: int
    ) -> None:
        self._runner, self.context = runner, context
        self._prefix_tokens, self._first_position = len(prefix), first_position
        self._owners: list[weakref.ref[SequenceState] | None] = [None] * parallel
        runner.clear(0, memory=False)
        self.prefix_logits = runner.run(0, [RunInput(prefix, 0, 0, False)])
        self._prefix_rows = runner.read_text(0, False, len(prefix))

    def __len__(self) -> int:
        """Slots."""
        return len(self._owners)

    def at(self, slot: int) -> SequenceState | None:
        """Who has a slot."""
        reference = self._owners[slot]
        return reference() if reference is not None else None

    def input(self, sequence: SequenceState, tokens: Sequence[int]) -> RunInput:
        """These tokens after what the sequence has read, in the place of those that were drafted."""
        sequence.drafted.clear()
        position = self._first_position + len(sequence.tokens)
        return RunInput(tokens, position, self.length(sequence), sequence.memory, sequence.record)

    def length(self, sequence: SequenceState) -> int:
        """Text rows of a sequence, the prefix's included."""
        return self._prefix_tokens + len(sequence.tokens)

    def input_between(self, slot: int) -> RunInput:
        """What a step runs for a slot that lies between those of its sequences: a row behind the text, never read."""
        sequence = self.at(slot)
        if sequence is None:
            return RunInput([0], 0, 0, False)
        # A background run writes where the sequence's text goes on, and drafted rows are there; behind the last row is
        # nothing.
        behind = self.context if sequence.running or sequence.drafted else self.length(sequence)
        return RunInput([0], 0, behind, sequence.memory)

    def free(self, waiting: Collection[SequenceState]) -> int | None:
        """A slot that nobody needs now: an empty one, else that of the sequence that needs it least."""
        now = time.monotonic()
        candidates: list[tuple[int, float, int]] = []
        for slot in range(len(self)):
            sequence = self.at(slot)
            if sequence is None:
                return slot
            if sequence.running:
                continue
            idle = now - sequence.last_read > IDLE_S
            if sequence not in waiting and (sequence.over or idle):
                candidates.append((0 if sequence.over else 1, sequence.last_read, slot))
            elif sequence.reads >= QUANTUM:
                candidates.append((2, sequence.last_read, slot))
        return min(candidates)[2] if candidates else None

    def give(self, slot: int, sequence: SequenceState) -> None:
        """Give a slot to a sequence that has none; the rows of the one that leaves are copied out."""
        if (leaving := self.at(slot)) is not None:
            leaving.parked = self._runner.read_text(slot, leaving.memory, self.length(leaving))
            leaving.slot = None
            leaving.drafted.clear()
        self._runner.release(slot)
        self._load(sequence, slot, sequence.parked or self._prefix_rows)
        sequence.parked, sequence.reads = None, 0

    def gather(self, stepping: Sequence[SequenceState]) -> None:
        """Move sequences so that those of a step lie side by side, unless one that only missed it lies between."""
        while len(stepping) > 1:
            slots = sorted(s.slot for s in stepping if s.slot is not None)
            now = time.monotonic()
            between = [(n, self.at(n)) for n in range(slots[0], slots[-1]) if n not in slots]
            idle = [(n, o) for n, o in between if o is None or o.over or now - o.last_read > IDLE_S]
            holes = [n for n, other in idle if other is None or not other.running]
            if not holes:
                return
            hole, last = holes[0], slots[-1]
            moved, other = self.at(last), self.at(hole)
            assert moved is not None
            rows = self._runner.read_text(last, moved.memory, self.length(moved))
            if other is not None:
                self._load(other, last, self._runner.read_text(hole, other.memory, self.length(other)))
            else:
                self._owners[last] = None
            for slot in (last, hole):
                self._runner.release(slot)
            self._load(moved, hole, rows)

    def inject(self, sequence: SequenceState, memories: Sequence[ExplicitMemory]) -> None:
        """Let a sequence attend to these memories from its next token on."""
        sequence.drafted.clear()  # they were run with those before
        if sequence.slot is not None and sequence.memory:
            self._runner.inject(sequence.slot, memories)
        sequence.memories = tuple(memories)

    def restart(self, sequence: SequenceState, memory: bool) -> None:
        """Let a sequence hold no text, and from now on memories or none."""
        sequence.tokens, sequence.memory, sequence.memories, sequence.parked = [], memory, (), None
        sequence.drafted.clear()
        if sequence.slot is not None:
            self._load(sequence, sequence.slot, self._prefix_rows)

    def copy(self, source: SequenceState, target: SequenceState, tokens: int) -> None:
        """Let the target have read the first tokens of the source."""
        self.restart(target, source.memory)
        stop = self._prefix_tokens + tokens
        if source.slot is not None:
            rows = self._runner.read_text(source.slot, source.memory, stop)
        else:
            held = source.parked or self._prefix_rows
            rows = {name: array[:, :stop] for name, array in held.items()}
        if target.slot is not None:
            self._runner.write_text(target.slot, target.memory, rows)
        else:
            target.parked = rows
        target.tokens = source.tokens[:tokens]

    def read_text(self, sequence: SequenceState, tokens: int, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The first text rows, prefix included, of these cache tensors, float32 [heads, tokens, d] of the host."""
        if sequence.slot is not None:
            rows = self._runner.read_text(sequence.slot, sequence.memory, tokens, names)
        else:
            rows = sequence.parked or self._prefix_rows
        return {name: self._runner.on_host(rows[name][:, :tokens]) for name in names}

    def on_host(self, memories: Sequence[ExplicitMemory]) -> list[ExplicitMemory]:
        """The same memories with keys that are float32 of the host."""
        return [replace(memory, keys=self._runner.on_host(memory.keys)) for memory in memories]

    def move(self, source: SequenceState, target: SequenceState) -> None:
        """Let the target have the source's rows where they lie; the source is empty then."""
        if target.slot is not None:
            self._owners[target.slot] = None
        if source.slot is not None:
            self._owners[source.slot] = weakref.ref(target)
        target.slot, target.parked = source.slot, source.parked
        target.tokens, target.memory, target.memories = source.tokens, source.memory, source.memories
        source.slot = source.parked = None
        source.tokens, source.memories = [], ()
        for sequence in (source, target):
            sequence.drafted.clear()

    def _load(self, sequence: SequenceState, slot: int, rows: TextRows) -> None:
        """Write what a sequence has read, and the memories it reads, to a slot, which is its own then."""
        sequence.slot = slot
        sequence.drafted.clear()
        self._owners[slot] = weakref.ref(sequence)
        self._runner.clear(slot, sequence.memory)
        self._runner.write_text(slot, sequence.memory, rows)
        if sequence.memory:
            self._runner.inject(slot, sequence.memories)
