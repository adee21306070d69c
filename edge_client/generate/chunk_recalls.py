"""`ChunkRecalls`: requests the memories of an answer's chunks and swaps them into the slots when they are due."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from concurrent.futures import TimeoutError
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from edge_client.decoder.sequence import CachedSequence
from edge_client.engine import Engine
from edge_client.errors import Cancellation
from edge_client.generate.prompt import cut, last_turn, requests_recall
from edge_client.recall.outcome import MemoryRead, Recall, without
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import SLOW, LocalSource
from edge_client.recall.worker import Ticket
from edge_client.stream import Recalled
from memory3.text.chat import Prompt

GRACE_S = 0.1
"""A wait lasts this much longer than the ticket, so that it is the worker who learns that the service is slow."""
LOCAL_GRACE_S = 30.0
"""The same where no service is called: what this device computes comes, later if other programs take its processors."""
INTENDED = ("OFFLINE", "CANCELLED")
"""Reasons of recalls that failed because somebody wanted it so."""
_BEHIND = "the recall of a chunk before is still under way: embedding takes longer than a chunk on this device"


@dataclass
class _Pending:
    """A generated chunk's recall that is under way since `begun`. overdue: its chunk has begun without it."""

    ticket: Ticket
    chunk: int
    begun: float
    overdue: bool = False


class RecallSource(Protocol):
    """What recalls for an answer: a `RecallWorker`, or memories that were chosen before."""

    def submit(self, queries: Sequence[str], *, deadline_s: float, also: LocalSource | None = None) -> Ticket:
        """Request the memories of `queries`."""


class ChunkRecalls:
    """The recalls of one answer. One thread at a time.

    policy: with mode `off` nothing is recalled. also: the conversation's own memories, searched next to the knowledge
    bases; None where it has none. worker: None for the engine's. cancellation: ends a wait. events: Recalled events
    that were not yet passed on. last: the last event of every chunk. read: what is in the slots, as it was recalled.
    kept: tokens of the prompt that were read before. failed: whether a chunk went without memories because they could
    not be had.
    """

    def __init__(
        self,
        engine: Engine,
        sequence: CachedSequence,
        prompt: Prompt,
        policy: RecallPolicy,
        cancellation: Cancellation,
        also: LocalSource | None = None,
        *,
        worker: RecallSource | None = None,
    ) -> None:
        self.chunk_tokens = sequence.decoder.config.memory.chunk_tokens
        self._waits = policy.mode is RecallMode.exact
        self.lead_tokens = 0 if self._waits else policy.lead_tokens
        self.also = also
        self.events: list[Recalled] = []
        self.last: dict[int, Recalled] = {}
        self.read: tuple[MemoryRead, ...] = ()
        self.kept = 0
        self.failed = False
        self.worker: RecallSource | None = None if policy.mode is RecallMode.off else worker or engine.worker
        self._recaller = engine.recaller
        self._sequence, self._policy, self._cancellation = sequence, policy, cancellation
        self._prompt, self._tokenizer = prompt, engine.bundle.tokenizer
        # With the prompt's the first generated chunks fill their query up to a chunk's length.
        self._content = [t for t, is_content in zip(prompt.ids, prompt.content, strict=True) if is_content]
        self._pending: _Pending | None = None

    def read_prompt(self) -> np.ndarray:
        """Read what the sequence has not read of the prompt, each chunk with its own memories; the last token's logits.

        A turn that is asked once more is recalled once more, because documents may have come, changed or gone: from the
        first of its chunks on that has other memories now, it is read again. One call recalls for all chunks.
        Raises CancelledError.
        """
        text, first = self._sequence, len(self._sequence.tokens)
        self.kept, held = first, bool(text.memories)
        if not held and self.worker is not None:
            known = text.chunk_of(min(first, last_turn(self._prompt)))
            first = known.start if known is not None else first
        chunks = cut(self._prompt, self._tokenizer, self.chunk_tokens, first, held=held)
        queries = [chunk.query for chunk in chunks if chunk.query is not None]
        begun = time.perf_counter()
        found = iter(self._wait(self._submit(queries)) if queries and self.worker is not None else [])
        waited_ms = 1e3 * (time.perf_counter() - begun) / max(len(queries), 1)
        for chunk in chunks:
            if chunk.query is not None and self.worker is not None:
                recall = next(found)
                known = text.chunk_of(chunk.start)
                if known is not None and not recall.error and known.memory_ids != _ids(recall):
                    text.forget(chunk.start)
                    self.kept = chunk.start
                self._swap(len(self.last), recall, waited_ms, position=chunk.start)
                if recall.error:
                    text.miss()
            self._cancellation.check()
            if unread := chunk.tokens[max(len(text.tokens) - chunk.start, 0) :]:
                logits = text.read(unread)
        return logits

    def take_over(self, earlier: Sequence[Recalled]) -> None:
        """Report the recalls of a prompt that was read for this answer before; their keys and values are not kept."""
        for number, one in enumerate(earlier):
            self.last[number] = replace(one, chunk=number, recall=replace(one.recall, memories=()))
            self.failed = self.failed or bool(one.recall.error)
            self.read = self.read if one.recall.error else one.recall.read
        self.events += self.last.values()

    def generated(self, token: int, number: int) -> None:
        """Token `number` of the answer, from 1, was generated: request and swap in what is due now."""
        self._content.append(token)
        if self.worker is None:
            return
        if requests_recall(number, self.chunk_tokens, self.lead_tokens):
            self._request()
        if (pending := self._pending) is None:
            return
        ends = number % self.chunk_tokens == 0
        if ends and self._waits:
            begun = time.perf_counter()
            found = self._wait(pending.ticket)[0]
            self._take(found, 1e3 * (time.perf_counter() - begun))
        elif (ends or pending.overdue) and pending.ticket.done():
            found = pending.ticket.result()[0]
            self._take(replace(found, state="late") if pending.overdue and not found.error else found)
        elif ends:
            pending.overdue = True

    def _request(self) -> None:
        """Request the next chunk's memories. What embedding cannot keep up with is left out, and told."""
        # The fewer tokens of its own chunk a query has, the more of what came before. Without a word to search
        # for, the next chunk reads what this one reads.
        query = self._tokenizer.decode(self._content[-self.chunk_tokens :]).strip()
        pending, now = self._pending, time.perf_counter()
        if pending is not None and not pending.ticket.done() and now - pending.begun < self._recaller.queries.text_s:
            left_out = max(pending.chunk, *self.last) + 1
            self._swap(left_out, without([query], SLOW, _BEHIND, "skipped")[0], 0.0)
            return
        self._give_up("they had not come when the next chunk's were requested")
        if query:
            self._pending = _Pending(self._submit([query]), max(self.last, default=-1) + 1, now)

    @property
    def error(self) -> str:
        """Why a chunk went without memories, or without those of the service; "" where nothing failed."""
        found = (one.recall.error or one.recall.service_error for one in self.last.values())
        return next((error for error in found if error and error.partition(":")[0] not in INTENDED), "")

    def end(self) -> None:
        """The answer is over: nobody waits for what is under way."""
        failed = self.failed
        self._give_up("they had not come when the answer ended")
        self.failed = failed  # memories for tokens that never were are not missed

    def _submit(self, queries: Sequence[str]) -> Ticket:
        assert self.worker is not None
        deadline_s = self._recaller.deadline_s(queries, self._policy.deadline_s)
        return self.worker.submit(queries, deadline_s=deadline_s, also=self.also)

    def _give_up(self, why: str) -> None:
        """Cancel what is under way; its event has state "skipped" if its chunk has begun."""
        if (pending := self._pending) is None:
            return
        pending.ticket.end()
        if pending.overdue:
            self._take(without(pending.ticket.queries, "CANCELLED", why, "skipped")[0])
        self._pending = None

    def _take(self, found: Recall, blocked_ms: float = 0.0) -> None:
        """The end of what was under way."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        self._swap(pending.chunk, found, blocked_ms)

    def _swap(self, chunk: int, found: Recall, waited_ms: float, *, position: int | None = None) -> None:
        """Give the slots these memories, or after an error leave them those they have; adds the event.

        position: where in the prompt the chunk begins; None for a generated one, which begins now.
        """
        kept, inject_ms = len(self._sequence.memories), 0.0
        if not found.error:
            begun = time.perf_counter()
            self._sequence.inject(found.memories, _ids(found))
            self.read = found.read
            inject_ms = 1e3 * (time.perf_counter() - begun)
        self.failed = self.failed or bool(found.error)
        times = replace(found.times, inject_ms=inject_ms)
        recalled = Recalled(
            chunk,
            position is None,
            replace(found, times=times),
            kept=kept if found.error else 0,
            position=len(self._sequence.tokens) if position is None else position,
            blocked_ms=waited_ms + inject_ms,
        )
        self.events.append(recalled)
        self.last[chunk] = recalled

    def _wait(self, ticket: Ticket) -> list[Recall]:
        """What the ticket holds when it is done or the answer is cancelled, or that the time is over."""
        waiting = weakref.ref(ticket)  # a cancellation must not keep memories alive

        def cancel(_: object) -> None:
            if (left := waiting()) is not None:
                left.end()

        self._cancellation.add_done_callback(cancel)
        grace_s = LOCAL_GRACE_S if self._recaller.client is None else GRACE_S
        limit_s = self._recaller.deadline_s(ticket.queries, self._policy.deadline_s) + grace_s
        try:
            return ticket.result(limit_s)
        except TimeoutError:
            message = f"no memories {limit_s:g} s after they were needed"
            return without(ticket.queries, "DEADLINE_EXCEEDED", message, "late")


def _ids(recall: Recall) -> tuple[int, ...]:
    """Of the memories that are read, which name their content, in their order."""
    return tuple(memory.memory_id for memory in recall.read if not memory.refused)
