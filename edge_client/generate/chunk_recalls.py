"""When an answer's chunks request memories and when these reach the slots: the three modes of recalling.

    exact     at a chunk's end request, wait (up to the deadline), swap
    overlap   `lead_tokens` before a chunk's end request; at its end swap if they are there, else when they come
    off       never
A prompt waits for its memories in both modes. How a recall is made is `edge_client.recall.recaller`'s business.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace

import numpy as np

from edge_client.cancellation import Cancellation
from edge_client.decoder.sequence import Sequence
from edge_client.events import Blocked, Recalled
from edge_client.generate.prompt import cut, generated_query
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import LocalSource, Recall, without
from edge_client.recall.worker import RecallWorker, Ticket
from memory_model.chat import Prompt
from memory_model.tokenizer import Tokenizer

GRACE_S = 0.1
"""A wait lasts this much longer than the ticket, so that it is the worker who learns that the service is slow."""


@dataclass
class _Pending:
    """A generated chunk's recall that is under way. overdue: its chunk has begun without it."""

    ticket: Ticket
    chunk: int
    blocked_ms: float
    overdue: bool = False


class ChunkRecalls:
    """The recalls of one answer. One thread at a time.

    worker: None recalls nothing. also: the conversation's own memories, searched beside the knowledge bases; None where
    it has none. cancellation: ends a wait. news: Recalled events that were not yet passed on. last: the last event of
    every chunk. failed: whether a chunk went without memories because they could not be had.
    """

    def __init__(
        self, sequence: Sequence, prompt: Prompt, tokenizer: Tokenizer, worker: RecallWorker | None,
        policy: RecallPolicy, cancellation: Cancellation, also: LocalSource | None = None,
    ) -> None:  # fmt: skip
        self.chunk_tokens = sequence.decoder.config.memory.chunk_tokens
        self._waits = policy.mode is RecallMode.exact
        self.lead_tokens = 0 if self._waits else policy.lead_tokens
        self.also = also
        self.news: list[Recalled] = []
        self.last: dict[int, Recalled] = {}
        self.failed = False
        self._worker, self._sequence, self._policy = worker, sequence, policy
        self._prompt, self._tokenizer = prompt, tokenizer
        # With the prompt's the first generated chunks fill their query up to a chunk's length.
        self._content = [t for t, is_content in zip(prompt.ids, prompt.content, strict=True) if is_content]
        self._pending: _Pending | None = None
        self.waiting: Ticket | None = None
        self._cancellation = cancellation
        # Weak, because whoever may cancel must not keep memories and caches alive.
        this = weakref.ref(self)
        cancellation.when_cancelled(lambda: _end_wait(this()))

    def read_prompt(self, reused: int) -> np.ndarray:
        """Read the prompt from token `reused` on, every chunk with its own memories; the logits after the last token.

        Raises Cancelled.
        """
        held = bool(self._sequence.held.memories)
        chunks = cut(self._prompt, self._tokenizer, self.chunk_tokens, reused, held=held)
        found = iter(self._for_prompt([chunk.query for chunk in chunks if chunk.query is not None]))
        for chunk in chunks:
            if chunk.query is not None:
                self._inject(*next(found))
            self._cancellation.check()
            logits = self._sequence.read(chunk.tokens)
        return logits

    def _for_prompt(self, queries: Tokens[str]) -> list[tuple[Recall, float]]:
        """Recalls of all chunks of a prompt by one call, or why there are none; with each its share of the wait."""
        if not queries or self._worker is None:
            return [(Recall(q, state="off"), 0.0) for q in queries]
        begun = time.perf_counter()
        found = self._wait(self._submit(queries))
        waited_ms = 1e3 * (time.perf_counter() - begun) / len(queries)
        return [(recall, waited_ms) for recall in found]

    def _inject(self, found: Recall, waited_ms: float) -> None:
        """Put a prompt chunk's memories into the slots; after an error those that are there stay."""
        if self._worker is not None:
            self._swap(len(self.last), found, waited_ms, generated=False)
            if found.error:
                self._sequence.miss()

    def generated(self, token: int) -> None:
        """A token was generated."""
        self._content.append(token)

    def request(self) -> None:
        """Request the memories of the next chunk; what was requested before and has not come is given up."""
        if self._worker is None:
            return
        self._give_up("they had not come when the next chunk's were requested")
        # Without a word to search for, the next chunk reads what this one reads.
        query = self._tokenizer.decode(generated_query(self._content, self.chunk_tokens)).strip()
        if query:
            begun = time.perf_counter()
            ticket = self._submit([query])
            self._pending = _Pending(ticket, len(self.last), 1e3 * (time.perf_counter() - begun))

    def begin_chunk(self) -> None:
        """A chunk ends: swap in what was requested. In `overlap`, what is late is swapped in when it comes."""
        if (pending := self._pending) is None or pending.overdue:
            return
        if self._waits:
            begun = time.perf_counter()
            found = self._wait(pending.ticket)
            pending.blocked_ms += 1e3 * (time.perf_counter() - begun)
            self._take(found[0])
        elif pending.ticket.done():
            self._take(pending.ticket.result(0)[0])
        else:
            pending.ticket.result(0)  # marks the ticket as late
            pending.overdue = True

    def take_late(self) -> None:
        """Between two steps: swap in what was late and has come."""
        if self._pending is not None and self._pending.overdue and self._pending.ticket.done():
            self._take(self._pending.ticket.result(0)[0])

    def end(self) -> None:
        """The answer is over: nobody waits for what is under way."""
        failed = self.failed
        self._give_up("they had not come when the answer ended")
        self.failed = failed  # memories for tokens that never were are not missed

    def _submit(self, queries: Tokens[str]) -> Ticket:
        assert self._worker is not None
        return self._worker.submit(queries, deadline_s=self._policy.deadline_s, also=self.also)

    def _give_up(self, why: str) -> None:
        """Cancel what is under way; its event has state "skipped" if its chunk has begun."""
        if (pending := self._pending) is None:
            return
        pending.ticket.cancel()
        if pending.overdue:
            self._take(without(pending.ticket.queries, "CANCELLED", why, "skipped")[0])
        self._pending = None

    def _take(self, found: Recall) -> None:
        """The end of what was under way."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        self._swap(pending.chunk, found, pending.blocked_ms, generated=True)

    def _swap(self, chunk: int, found: Recall, waited_ms: float, *, generated: bool) -> None:
        """Give the slots these memories, or after an error leave them those they have; adds the event."""
        kept, inject_ms = len(self._sequence.held.memories), 0.0
        if not found.error:
            begun = time.perf_counter()
            self._sequence.inject(found)
            inject_ms = 1e3 * (time.perf_counter() - begun)
        self.failed = self.failed or bool(found.error)
        times = replace(found.times, inject_ms=inject_ms)
        recalled = Recalled(
            chunk, generated, replace(found, times=times), kept=kept if found.error else 0,
            position=len(self._sequence.tokens), blocked=Blocked.of(found, waited_ms, inject_ms),
        )  # fmt: skip
        self.news.append(recalled)
        self.last[chunk] = recalled

    def _wait(self, ticket: Ticket) -> list[Recall]:
        """What the ticket holds when it is done, the time is over, or the answer is cancelled."""
        self.waiting = ticket
        if self._cancellation.cancelled:
            ticket.cancel()
        found = ticket.result(self._policy.deadline_s + GRACE_S)
        self.waiting = None
        return found


def _end_wait(recalls: ChunkRecalls | None) -> None:
    """The answer was cancelled, in whatever thread."""
    if recalls is not None and (waiting := recalls.waiting) is not None:
        waiting.cancel()
