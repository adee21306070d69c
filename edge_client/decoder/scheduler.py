"""`Scheduler`: owns a decoder's caches and runs what others request, through a queue to its thread.

Steps that come together are run together: a step waits a few milliseconds for the other sequences that are decoding.
A sequence that decodes alone reads and makes its steps itself while it holds the caches: two changes of thread a token
would cost up to a tenth of the decoding rate, and what another core has read is not in this one's caches.
Prompts are read in pieces between steps. On the CPU, what is read in the background has a thread of its own, at a low
priority, and runs at the same time as the steps.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from edge_client.decoder.slots import IDLE_S, SequenceState, Slots
from edge_client.errors import ProviderError
from memory3.runtime.backend import DecoderRunner

PATIENCE_S = 0.005
"""How long a step waits for other sequences that decode, or half of what the last one took if that is more."""
LATELY_S = 0.05
"""A sequence decodes if it has read something within this time."""
STOP_S = 5.0
"""Longest wait for the thread's end."""
T = TypeVar("T")


class _Work:
    """What a thread waits for. error: by which it failed. abandoned: nobody waits for it any more."""

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self.error: BaseException | None = None
        self.abandoned = False

    def finish(self, error: BaseException | None = None) -> None:
        """Let the waiting thread go on."""
        self.error = error
        self._done.release()

    def wait(self) -> None:
        """Until `finish`; raises its error."""
        try:
            self._done.acquire()
        except BaseException:  # an interrupt: nobody waits any more
            self.abandoned = True
            raise
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # else error and frames hold each other


class _Read(_Work):
    """Tokens that a sequence reads now. draft: what may follow them; came: when; logits: what came of it."""

    def __init__(
        self, sequence: SequenceState, tokens: Sequence[int], all_logits: bool, draft: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.sequence, self.tokens, self.all_logits, self.draft = sequence, tokens, all_logits, draft
        self.came = time.monotonic()
        self.logits: np.ndarray | None = None

    @property
    def steps(self) -> bool:
        """Whether it can be run together with others."""
        return len(self.tokens) == 1 and not self.all_logits


class _Call(_Work):
    """A function that needs the slots, run between two runs."""

    def __init__(self, function: Callable[[Slots], object]) -> None:
        super().__init__()
        self.function = function
        self.result: object = None


class _Ended(_Work):
    """A background run that is over: its request with logits or error."""

    def __init__(self, request: _Read, logits: np.ndarray | None, error: Exception | None) -> None:
        super().__init__()
        self.request, self.logits, self.failure = request, logits, error


class Scheduler:
    """Runs reads of many sequences. `read` and `call` may be called from any thread but its own, and block.

    concurrent_steps: whether background reads run at the same time as steps. batch_sizes: steps by their number of
    sequences; steps: all of them, and the accepted tokens of drafts.
    """

    def __init__(self, runner: DecoderRunner, slots: Slots, *, concurrent_steps: bool) -> None:
        self._runner, self._slots, self._concurrent_steps = runner, slots, concurrent_steps
        self.batch_sizes: Counter[int] = Counter()
        self.steps = 0
        self.step_s = 0.0
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._owner = threading.Lock()
        self._stopped = False
        self._waiting: list[_Read] = []
        self._arrived: list[_Work | None] = []  # taken from the queue, before the thread has the caches
        self._free_since = 0.0
        self._prompt_next = True
        self._background = ThreadPoolExecutor(1, "memory3-background-read", initializer=lower_priority)
        self._thread = threading.Thread(target=self._serve, name="memory3-decoder", daemon=True)
        self._thread.start()

    def read(
        self, sequence: SequenceState, tokens: Sequence[int], all_logits: bool = False, draft: Sequence[int] = ()
    ) -> np.ndarray:
        """Append tokens to a sequence; logits float32 [1, vocabulary], or `all_logits` [n, vocabulary].

        draft: see `CachedSequence.read`. Raises ProviderError.
        """
        request = _Read(sequence, tokens, all_logits, draft)
        sequence.reading = True
        try:
            if not self._read_alone(request):
                self._queue.put(request)
            request.wait()
        finally:
            sequence.reading = False
        assert request.logits is not None
        return request.logits

    def call(self, function: Callable[[Slots], T]) -> T:
        """The result of a function that may change slots: nothing but background reads runs meanwhile."""
        call = _Call(function)
        self._queue.put(call)
        call.wait()
        return call.result  # type: ignore[return-value]  # of this function

    def wake(self) -> None:
        """Decide anew: a sequence is over."""
        self._queue.put(None)

    def stop(self) -> None:
        """End the thread, which then lets the caches go. Idempotent."""
        self._stopped = True
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)
        self._background.shutdown(wait=False)

    def _read_alone(self, request: _Read) -> bool:
        """Read in the thread that requests it; False, and nothing is done, where others wait or decode too."""
        if not self._owner.acquire(blocking=False):
            return False
        try:
            if self._stopped:
                return False
            if self._read_drafted(request):
                return True
            if self._waiting or self._arrived or not self._queue.empty() or not self._alone(request.sequence):
                return False
            if request.sequence.slot is None:
                if (slot := self._slots.free({request.sequence})) is None:
                    return False
                self._slots.give(slot, request.sequence)
            if request.steps:
                self._step([request])
            else:
                self._read(request)
            self._free_since = time.monotonic()
            return True
        finally:
            self._owner.release()

    def _alone(self, sequence: SequenceState) -> bool:
        """Whether a sequence reads in the foreground, and no other one decodes."""
        background = self._concurrent_steps and sequence.per_step is not None
        return not background and not self._missing({sequence})

    # Everything below runs in the scheduler's thread, or in the thread that holds `_owner`.

    def _serve(self) -> None:
        while not self._stopped:
            self._arrived = self._await(self._patience())
            with self._owner:
                arrived, self._arrived = self._arrived, []
                self._take(*arrived)
                arrived.clear()  # else the message is kept until the next one
                try:
                    while not self._stopped and self._advance():
                        self._take()
                except Exception as error:  # a fault of ours must not leave anybody waiting
                    waiting, self._waiting = self._waiting, []
                    for request in waiting:
                        request.finish(error)

    def _await(self, timeout_s: float | None) -> list[_Work | None]:
        """The next message, or nothing in this time; None: without end."""
        try:
            return [self._queue.get(timeout=timeout_s)]
        except queue.Empty:
            return []

    def _take(self, *arrived: _Work | None) -> None:
        """Accept these messages and everything that is in the queue."""
        works = list(arrived)
        while not self._queue.empty():
            works.append(self._queue.get_nowait())
        for work in works:
            if isinstance(work, _Read):
                if not self._read_drafted(work):
                    self._waiting.append(work)
            elif isinstance(work, _Ended):
                work.request.sequence.running = False
                self._finish(work.request, work.logits, work.failure)
            elif isinstance(work, _Call):
                self._run_call(work)
        self._waiting = [r for r in self._waiting if not r.abandoned]

    def _run_call(self, call: _Call) -> None:
        try:
            call.result = call.function(self._slots)
        except Exception as error:
            call.finish(error)
        else:
            call.finish()

    def _advance(self) -> bool:
        """Do one thing that is due: give a slot, begin a background read, read a prompt's piece, or make a step.

        Returns False where nothing is due. Prompts and steps take turns.
        """
        slotted = [r for r in self._waiting if r.sequence.slot is not None]
        if len(slotted) < len(self._waiting):
            slot = self._slots.free({r.sequence for r in self._waiting})
            if slot is not None:
                self._give(slot, next(r for r in self._waiting if r.sequence.slot is None))
                return True
        for request in slotted:
            if self._concurrent_steps and request.sequence.per_step is not None:
                self._waiting.remove(request)
                request.sequence.running = True
                self._background.submit(self._read_in_background, request)
                return True
        prompts, steps = [r for r in slotted if not r.steps], [r for r in slotted if r.steps]
        if prompts and (self._prompt_next or not steps):
            self._prompt_next = False
            self._waiting.remove(prompts[0])
            self._read(prompts[0])
        elif steps and self._all_came(steps):
            self._prompt_next = True
            self._waiting = [r for r in self._waiting if r not in steps]
            self._step(steps)
        else:
            return False
        self._free_since = time.monotonic()
        return True

    def _give(self, slot: int, request: _Read) -> None:
        try:
            self._slots.give(slot, request.sequence)
        except Exception as error:
            self._waiting.remove(request)
            request.finish(error)

    def _all_came(self, steps: Sequence[_Read]) -> bool:
        return not self._missing({r.sequence for r in self._waiting}) or time.monotonic() >= self._waits_until(steps)

    def _missing(self, here: Container[SequenceState]) -> bool:
        """Whether another sequence decodes than these."""
        now = time.monotonic()
        owners = (self._slots.at(slot) for slot in range(len(self._slots)))
        decoding = (s for s in owners if s is not None and s.per_step is None and not s.over)
        return any(s not in here and now - s.last_read < LATELY_S for s in decoding)

    def _waits_until(self, steps: Sequence[_Read]) -> float:
        return max(self._free_since, min(r.came for r in steps)) + max(PATIENCE_S, self.step_s / 2)

    def _patience(self) -> float | None:
        """Seconds to wait before deciding again when nothing arrives."""
        if not self._waiting:
            return None
        left = self._waits_until(self._waiting) - time.monotonic()
        return left if left > 0 else IDLE_S / 4

    def _read(self, request: _Read) -> None:
        """Several tokens of one sequence."""
        self._finish(request, *self._run(request))

    def _read_in_background(self, request: _Read) -> None:
        """As `_read`, in the background's thread, which alone touches the sequence's slot meanwhile."""
        self._queue.put(_Ended(request, *self._run(request)))

    def _run(self, request: _Read) -> tuple[np.ndarray | None, Exception | None]:
        try:
            slot = request.sequence.slot
            assert slot is not None
            inputs = [self._slots.input(request.sequence, request.tokens)]
            return self._runner.run(slot, inputs, all_logits=request.all_logits), None
        except Exception as error:
            return None, error

    def _read_drafted(self, request: _Read) -> bool:
        """Answer a request from a draft that was run before; False, and that is dropped, where the draft differs."""
        drafted = request.sequence.drafted
        if not drafted or not request.steps:
            return False
        token, logits = drafted.popleft()
        if token != request.tokens[0]:
            drafted.clear()
            return False
        self.steps += 1
        request.sequence.accepted_tokens += 1
        self._finish(request, logits)
        return True

    def _step(self, requests: Sequence[_Read]) -> None:
        """One token of each of these sequences, or of a single one its draft too.

        A slot that lies between theirs is passed over.
        """
        begun = time.monotonic()
        if len(requests) == 1 and requests[0].draft:
            self._verify(requests[0])
        else:
            self._step_together(requests)
        self.step_s = time.monotonic() - begun

    def _verify(self, request: _Read) -> None:
        """Run a token and what may follow it; the logits after these wait until the sequence reads them."""
        sequence, slot = request.sequence, request.sequence.slot
        assert slot is not None
        try:
            inputs = [self._slots.input(sequence, [*request.tokens, *request.draft])]
            logits = self._runner.run(slot, inputs, all_logits=True)
        except Exception as error:
            self._finish(request, None, error)
            return
        self.batch_sizes[1] += 1
        self.steps += 1
        sequence.drafted.extend((token, logits[n : n + 1]) for n, token in enumerate(request.draft, 1))
        sequence.drafted_tokens += len(request.draft)
        self._finish(request, logits[:1])

    def _step_together(self, requests: Sequence[_Read]) -> None:
        """One token of each of these sequences."""
        try:
            self._slots.gather([r.sequence for r in requests])
            at = {r.sequence.slot: r for r in requests if r.sequence.slot is not None}
            first, last = min(at), max(at)
            inputs = [
                self._slots.input(at[slot].sequence, at[slot].tokens) if slot in at else self._slots.input_between(slot)
                for slot in range(first, last + 1)
            ]
            logits = self._runner.run(first, inputs)
        except Exception as error:
            for request in requests:
                self._finish(request, None, error)
            return
        self.batch_sizes[len(requests)] += 1
        self.steps += 1
        for slot, request in at.items():
            # Of several each has a copy: the next step may come before all have looked at theirs.
            row = logits[slot - first : slot - first + 1]
            self._finish(request, row.copy() if len(inputs) > 1 else row)

    def _finish(self, request: _Read, logits: np.ndarray | None, error: Exception | None = None) -> None:
        if logits is None:
            request.finish(error)
            return
        if (wrong := broken(logits)) is not None:
            request.finish(wrong)
            return
        sequence = request.sequence
        sequence.tokens.extend(request.tokens)
        sequence.reads += 1
        sequence.last_read = time.monotonic()
        request.logits = logits.copy() if request.all_logits else logits
        request.finish()


def broken(logits: np.ndarray) -> ProviderError | None:
    """The error of logits that are no numbers."""
    message = "the decoder's logits are NaN: the file or the execution provider is damaged"
    return ProviderError(message, reason="WRONG_RESULT") if np.isnan(logits[-1, 0]) else None


def lower_priority() -> None:
    """Of this thread, where Linux has one for each: next to decoding on the same core it gets about a quarter."""
    if sys.platform == "linux":
        os.nice(5)
