"""`Decoder`: one model's graph and caches, shared by any number of conversations.

Every answer keeps its own thread and loop. Steps that come together are run together: whoever comes first waits a few
milliseconds for the other answers that are decoding, one of the waiting threads runs the step for all. Prompts are
read in pieces between steps; on the CPU what is read in the background has a core of its own, where there is one, and
is read beside the steps. There are `parallel` places in the caches; a sequence that needs one takes that of one that
does not decode, whose rows are copied out until it goes on.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition

import numpy as np

from edge_client.decoder.kv import CONTEXT
from edge_client.decoder.providers import open_decoder
from edge_client.decoder.providers.provider import Threads
from edge_client.decoder.runtime import named_errors
from edge_client.decoder.sequence import CachedSequence
from edge_client.errors import ProviderError
from memory3.backend import DecoderBackend, RunInput, TextRows
from memory3.bundle import Bundle
from memory3.chat import prefix_ids
from memory3.codec.payload import ExplicitMemory
from memory3.errors import InvalidInput

PATIENCE_S = 0.005
"""How long a step waits for other sequences that decode, or half of what the last one took if that is more."""
LATELY_S = 0.05
"""A sequence decodes if it has read something within this time."""
QUANTUM = 64
"""Reads after which a decoding sequence gives its place to one that waits for a place."""
IDLE_S = 0.1
"""A sequence that read nothing for so long gives its place at once."""
LOOK_S = 0.02
"""How often work in the background looks whether the others made steps."""


@dataclass(eq=False)
class _Request:
    """Tokens that a sequence reads now. came: when; logits or error: what came of it."""

    sequence: CachedSequence
    tokens: Sequence[int]
    all_logits: bool = False
    came: float = field(default_factory=time.monotonic)
    logits: np.ndarray | None = None
    error: BaseException | None = None

    @property
    def steps(self) -> bool:
        """Whether it can be run together with others."""
        return len(self.tokens) == 1 and not self.all_logits


class Decoder:
    """Thread-safe.

    prefix: tokens of the modified BOS, with which every sequence begins (paper 3.2). context: tokens of a sequence,
    prefix included, at most what the model was trained for; 0: 2,048 or fewer. parallel: sequences in the caches.
    batch_sizes: steps by their number of sequences; steps: all of them. Raises InvalidInput, ProviderError
    (OUT_OF_MEMORY).
    """

    def __init__(self, graph: DecoderBackend, prefix: Sequence[int], *, context: int = 0, parallel: int = 4) -> None:
        self.graph, self.config, self.prefix = graph, graph.config, list(prefix)
        trained = self.config.positions
        self.context = context or min(CONTEXT, trained or CONTEXT)
        if trained and self.context > trained:
            raise InvalidInput(
                f"a context of {self.context} tokens exceeds the {trained} that {self.config.name} was trained for"
            )
        if self.context < len(self.prefix) + self.config.memory.chunk_tokens or parallel < 1:
            raise InvalidInput(
                f"a context of {self.context} tokens and {parallel} sequences: at least the prefix, "
                f"a chunk of {self.config.memory.chunk_tokens} tokens, and one"
            )
        self.batch_sizes: Counter[int] = Counter()
        self.steps = 0
        self._hurried = 0  # threads that wait for work in the background
        self.parallel = parallel
        with named_errors(f"the key-values of {parallel} conversations"):
            self._runner = graph.runner(self.context, parallel, self.prefix)
        self._places: list[weakref.ref[CachedSequence] | None] = [None] * parallel
        self._sequences: weakref.WeakSet[CachedSequence] = weakref.WeakSet()
        self._state = Condition()
        self._busy = False  # a run, or a change of the caches, is under way
        self._changes = 0  # threads that wait to change a cache
        self._waiting: list[_Request] = []
        self._step_s = self._free_since = 0.0
        self._prompt_next = True
        self._runner.clear(0, memory=False)
        if (error := _broken(self._runner.run(0, [RunInput(self.prefix, 0, 0, False)]))) is not None:
            raise error
        self._prefix_rows = self._runner.read_text(0, False, len(self.prefix))

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        *,
        threads: Threads = 1,
        provider: str = "cpu",
        context: int = 0,
        parallel: int = 4,
        model: Path | None = None,
    ) -> Decoder:
        """The decoder of a bundle; see `open_decoder` for what else it raises."""
        size = {"context": context, "parallel": parallel}
        graph = open_decoder(bundle.decoder, threads=threads, provider=provider, model=model, **size)
        return cls(graph, prefix_ids(bundle.tokenizer, bundle.config.memory), **size)

    @property
    def room(self) -> int:
        """Tokens of text that fit into a sequence."""
        return self.context - len(self.prefix)

    def sequence(self, source: object = None) -> CachedSequence:
        """One more conversation; it takes a place when it reads. source: see `CachedSequence`."""
        made = CachedSequence(self, source)
        with self._state:
            self._sequences.add(made)
        return made

    # What `CachedSequence` calls.

    def read(self, sequence: CachedSequence, tokens: Sequence[int], *, all_logits: bool = False) -> np.ndarray:
        """Read at most PROMPT_TOKENS; blocks. Logits float32 [1, vocabulary], or `all_logits` [n, vocabulary]."""
        request = _Request(sequence, tokens, all_logits)
        try:
            with self._state:
                self._waiting.append(request)  # its own thread looks next what can be run now
            while chosen := self._next(request):
                self._run(chosen)
        finally:
            with self._state:  # of a thread that was interrupted
                if request in self._waiting:
                    self._waiting.remove(request)
        if request.error is not None:
            raise request.error
        assert request.logits is not None
        if sequence.per_step is not None:
            self.give_way(len(tokens), sequence.per_step)
        return request.logits

    @property
    def decodes(self) -> bool:
        """Whether somebody waits for tokens now: a sequence reads, or has read a moment ago, not in the background."""
        with self._state:
            lately = time.monotonic() - LATELY_S - 2 * self._step_s
            reading = {r.sequence for r in self._waiting} | {s for s in self._sequences if s.last_read > lately}
            return any(s.per_step is None and not s.over for s in reading)

    def give_way(self, tokens: int, per_step: float = 1.0) -> None:
        """After work in the background on so many tokens: wait, while others decode, for a step per `per_step` tokens.

        A token that is written or read takes a fifth to a quarter of a step, whatever the machine. So by default this
        work takes at most such a share of a core, and of a machine's only one.
        """
        until = self.steps + tokens / per_step
        while self.steps < until and self.decodes and not self._hurried:
            time.sleep(LOOK_S)

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Nothing in the background gives way within: somebody waits for it."""
        with self._state:
            self._hurried += 1
        try:
            yield
        finally:
            with self._state:
                self._hurried -= 1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing is run and no cache changes within."""
        with self._state:
            self._changes += 1
            try:
                while self._busy:
                    self._state.wait()
                self._busy = True
            finally:
                self._changes -= 1
        try:
            yield
        finally:
            with self._state:
                self._busy = False
                self._state.notify_all()

    def ended(self, sequence: CachedSequence) -> None:
        """Nobody waits for this sequence any more."""
        with self._state:
            sequence.over = True
            self._state.notify_all()

    def inject(self, sequence: CachedSequence, memories: Sequence[ExplicitMemory]) -> None:
        """Within `alone`: the sequence attends to these memories from its next token on."""
        if sequence.place is not None and sequence.memory:
            self._runner.inject(sequence.place, memories)
        sequence.memories = tuple(memories)

    def restart(self, sequence: CachedSequence, memory: bool) -> None:
        """Within `alone`: the sequence holds no text, and from now on memories or none."""
        sequence.tokens, sequence.memory, sequence.memories, sequence.parked = [], memory, (), None
        if sequence.place is not None:
            self._lay(sequence, sequence.place, self._prefix_rows)

    def copy(self, source: CachedSequence, target: CachedSequence, tokens: int) -> None:
        """Within `alone`: the target has read the first tokens of the source."""
        self.restart(target, source.memory)
        stop = len(self.prefix) + tokens
        if source.place is not None:
            rows = self._runner.read_text(source.place, source.memory, stop)
        else:
            rows = {name: rows[:, :stop] for name, rows in (source.parked or self._prefix_rows).items()}
        if target.place is not None:
            self._runner.write_text(target.place, target.memory, rows)
        else:
            target.parked = rows

    def move(self, source: CachedSequence, target: CachedSequence) -> None:
        """Within `alone`: the target has the source's rows where they lie, and the source has none."""
        if target.place is not None:
            self._places[target.place] = None
        if source.place is not None:
            self._places[source.place] = weakref.ref(target)
        target.place, target.parked = source.place, source.parked
        source.place = source.parked = None

    def others(self, sequence: CachedSequence) -> list[CachedSequence]:
        """Sequences whose rows this one can read: of the same source."""
        return [o for o in self._sequences if o is not sequence and o.source == sequence.source]

    # Which of the waiting requests are run next.

    def _next(self, mine: _Request) -> list[_Request]:
        """What this thread shall run, or nothing once its own request is over; waits."""
        with self._state:
            while mine.logits is None and mine.error is None:
                if not self._busy and not self._changes and (chosen := self._choose(mine)):
                    mine.sequence.beside = self._aside(chosen[0])
                    self._busy = not mine.sequence.beside
                    return chosen
                self._state.wait(self._patience())
        return []

    def _choose(self, mine: _Request) -> list[_Request]:
        """One that needs a place, a prompt's piece, or a step of all that are ready: the last two in turns.

        What is read in the background is run by its own thread, beside these.
        """
        placed = [r for r in self._waiting if r.sequence.place is not None]
        if len(placed) < len(self._waiting) and self._free_place() is not None:
            return [next(r for r in self._waiting if r.sequence.place is None)]
        if self._aside(mine):
            return [mine]
        placed = [r for r in placed if not self._aside(r)]
        prompts, steps = [r for r in placed if not r.steps], [r for r in placed if r.steps]
        if prompts and (self._prompt_next or not steps):
            return prompts[:1]
        return steps if steps and self._all_came(steps) else []

    def _aside(self, request: _Request) -> bool:
        """Whether it is read beside others: in the background, by a processor of several cores."""
        sequence = request.sequence
        return sequence.per_step is not None and sequence.place is not None and self.graph.device == "cpu"

    def _all_came(self, steps: Sequence[_Request]) -> bool:
        now, here = time.monotonic(), {r.sequence for r in self._waiting}
        placed = (self._at(place) for place in range(len(self._places)))
        decoding = (s for s in placed if s and s.per_step is None and not s.over)
        missing = (s for s in decoding if s not in here and now - s.last_read < LATELY_S)
        return not any(missing) or time.monotonic() >= self._waits_until(steps)

    def _waits_until(self, steps: Sequence[_Request]) -> float:
        return max(self._free_since, min(r.came for r in steps)) + max(PATIENCE_S, self._step_s / 2)

    def _patience(self) -> float | None:
        """Seconds until it is worth looking again although nobody said anything."""
        if self._busy or not self._waiting:
            return None
        left = self._waits_until(self._waiting) - time.monotonic()
        return left if left > 0 else IDLE_S / 4

    def _run(self, chosen: list[_Request]) -> None:
        """Do what `_next` chose, and let the next thread go on."""
        first, place, begun = chosen[0], chosen[0].sequence.place, time.monotonic()
        beside, stepping = first.sequence.beside, first.steps
        try:
            if place is None:
                self._take_place(first.sequence)
            elif stepping and not beside:
                self._step(chosen)
            else:  # several tokens of one sequence
                rows = [_row(first.sequence, first.tokens)]
                self._finish(first, self._runner.run(place, rows, all_logits=first.all_logits))
        except Exception as error:
            for request in chosen:
                request.error = error
        finally:  # an interrupt leaves the others of a step without logits: it is run again
            with self._state:
                self._waiting = [r for r in self._waiting if r.logits is None and r.error is None]
                if beside:
                    first.sequence.beside = False
                else:
                    if place is not None:
                        self._prompt_next = stepping
                    if place is not None and stepping:
                        self._step_s = time.monotonic() - begun
                    self._busy, self._free_since = False, time.monotonic()
                self._state.notify_all()

    def _step(self, requests: list[_Request]) -> None:
        """One token of each of these sequences; a place that lies between theirs is passed over."""
        self._gather([r.sequence for r in requests])
        at = {r.sequence.place: r for r in requests if r.sequence.place is not None}
        first, rows = min(at), []
        for place in range(first, max(at) + 1):
            if place in at:
                rows.append(_row(at[place].sequence, at[place].tokens))
            else:  # what this writes behind the text is never seen
                between = self._at(place)
                # One that reads beside this step writes where its text goes on; behind the last row nobody does.
                behind = between.length if between and not between.beside else self.context
                rows.append(RunInput([0], 0, behind, between.memory) if between else RunInput([0], 0, 0, False))
        logits = self._runner.run(first, rows)
        self.batch_sizes[len(requests)] += 1
        self.steps += 1
        for place, request in at.items():
            # Of several each has a copy: the next step may come before all have looked at theirs.
            row = logits[place - first : place - first + 1]
            self._finish(request, row.copy() if len(rows) > 1 else row)

    def _finish(self, request: _Request, logits: np.ndarray) -> None:
        request.error = _broken(logits)
        if request.error is not None:
            return
        sequence = request.sequence
        sequence.tokens.extend(request.tokens)
        sequence.reads += 1
        sequence.last_read = time.monotonic()
        request.logits = logits.copy() if request.all_logits else logits

    # Places.

    def _at(self, place: int) -> CachedSequence | None:
        reference = self._places[place]
        return reference() if reference is not None else None

    def _free_place(self) -> int | None:
        """A place that nobody needs now: an empty one, else that of the sequence that needs it least."""
        asked = {r.sequence for r in self._waiting}
        now = time.monotonic()
        candidates: list[tuple[int, float, int]] = []
        for place in range(len(self._places)):
            sequence = self._at(place)
            if sequence is None:
                return place
            if sequence.beside:
                continue
            idle = now - sequence.last_read > IDLE_S
            if sequence not in asked and (sequence.over or idle):
                candidates.append((0 if sequence.over else 1, sequence.last_read, place))
            elif sequence.reads >= QUANTUM:
                candidates.append((2, sequence.last_read, place))
        return min(candidates)[2] if candidates else None

    def _take_place(self, sequence: CachedSequence) -> None:
        """Give it a place, unless the sequence that would leave has asked for its next step meanwhile."""
        with self._state:
            place = self._free_place()
        if place is None:
            return
        if (leaving := self._at(place)) is not None:
            leaving.parked, leaving.place = self._runner.read_text(place, leaving.memory, leaving.length), None
        self._runner.release(place)
        self._places[place] = weakref.ref(sequence)
        self._lay(sequence, place, sequence.parked or self._prefix_rows)
        sequence.parked, sequence.reads = None, 0

    def _lay(self, sequence: CachedSequence, place: int, rows: TextRows) -> None:
        """Write what a sequence has read, and the memories it reads, to its place."""
        sequence.place = place
        self._runner.clear(place, sequence.memory)
        self._runner.write_text(place, sequence.memory, rows)
        if sequence.memory:
            self._runner.inject(place, sequence.memories)

    def _gather(self, stepping: Sequence[CachedSequence]) -> None:
        """Move sequences so that those of a step lie side by side, unless one that only missed it lies between."""
        while len(stepping) > 1:
            places = sorted(s.place for s in stepping if s.place is not None)
            between = [(p, self._at(p)) for p in range(places[0], places[-1]) if p not in places]
            now = time.monotonic()
            idle = [(p, o) for p, o in between if o is None or o.over or now - o.last_read > IDLE_S]
            holes = [p for p, other in idle if other is None or not other.beside]
            if not holes:
                return
            moved, other = self._at(places[-1]), self._at(holes[0])
            assert moved is not None
            rows = self._runner.read_text(places[-1], moved.memory, moved.length)
            if other is not None:
                self._lay(other, places[-1], self._runner.read_text(holes[0], other.memory, other.length))
            self._places[places[-1]] = self._places[holes[0]]
            self._places[holes[0]] = weakref.ref(moved)
            for place in (places[-1], holes[0]):
                self._runner.release(place)
            self._lay(moved, holes[0], rows)


def _broken(logits: np.ndarray) -> ProviderError | None:
    said = "the decoder's logits are NaN: the file or the execution provider is damaged"
    return ProviderError(said, reason="WRONG_RESULT") if np.isnan(logits[-1, 0]) else None


def _row(sequence: CachedSequence, tokens: Sequence[int]) -> RunInput:
    return RunInput(tokens, sequence.position, sequence.length, sequence.memory)
