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
from typing import TYPE_CHECKING

import numpy as np

from edge_client.cancellation import Cancellation
from edge_client.decoder.sequence import Sequence
from edge_client.events import Recalled
from edge_client.generate.prompt import asks, cut
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import Recall, without
from edge_client.recall.worker import Ticket
from memory_model.chat import Prompt

if TYPE_CHECKING:
    from edge_client.generate.past import Past
    from edge_client.model import EdgeModel

GRACE_S = 0.1
"""A wait lasts this much longer than the ticket, so that it is the worker who learns that the service is slow."""


@dataclass
class _Pending:
    """A generated chunk's recall that is under way. overdue: its chunk has begun without it."""

    ticket: Ticket
    chunk: int
    overdue: bool = False


class ChunkRecalls:
    """The recalls of one answer. One thread at a time.

    policy: with mode `off` nothing is recalled. also: the conversation's own memories, searched beside the knowledge
    bases; None where it has none. cancellation: ends a wait. news: Recalled events that were not yet passed on. last:
    the last event of every chunk. failed: whether a chunk went without memories because they could not be had.
    """

    def __init__(
        self, model: EdgeModel, sequence: Sequence, prompt: Prompt, policy: RecallPolicy, cancellation: Cancellation,
        also: Past | None = None,
    ) -> None:  # fmt: skip
        self.chunk_tokens = sequence.decoder.config.memory.chunk_tokens
        self._waits = policy.mode is RecallMode.exact
        self.lead_tokens = 0 if self._waits else policy.lead_tokens
        self.also = also
        self.news: list[Recalled] = []
        self.last: dict[int, Recalled] = {}
        self.failed = False
        self.worker = None if policy.mode is RecallMode.off else model.worker
        self._sequence, self._policy, self._cancellation = sequence, policy, cancellation
        self._prompt, self._tokenizer = prompt, model.bundle.tokenizer
        # With the prompt's the first generated chunks fill their query up to a chunk's length.
        self._content = [t for t, is_content in zip(prompt.ids, prompt.content, strict=True) if is_content]
        self._pending: _Pending | None = None

    def read_prompt(self, reused: int) -> np.ndarray:
        """Read the prompt from token `reused` on, every chunk with its own memories; the logits after the last token.

        One call recalls for all chunks. Raises Cancelled.
        """
        held = bool(self._sequence.held.memories)
        chunks = cut(self._prompt, self._tokenizer, self.chunk_tokens, reused, held=held)
        queries = [chunk.query for chunk in chunks if chunk.query is not None]
        found, begun = iter(list[Recall]()), time.perf_counter()
        if queries and self.worker is not None:
            found = iter(self._wait(self._submit(queries)))
        waited_ms = 1e3 * (time.perf_counter() - begun) / max(len(queries), 1)
        for chunk in chunks:
            if chunk.query is not None and self.worker is not None:
                recall = next(found)
                self._swap(len(self.last), recall, waited_ms, generated=False)
                if recall.error:
                    self._sequence.miss()
            self._cancellation.check()
            logits = self._sequence.read(chunk.tokens)
        return logits

    def generated(self, token: int, number: int) -> None:
        """Token `number` of the answer, from 1, was generated: request and swap in what is due now."""
        self._content.append(token)
        if self.worker is None:
            return
        if asks(number, self.chunk_tokens, self.lead_tokens):
            self._give_up("they had not come when the next chunk's were requested")
            # The fewer tokens of its own chunk a query has, the more of what was said before. Without a word to search
            # for, the next chunk reads what this one reads.
            if query := self._tokenizer.decode(self._content[-self.chunk_tokens :]).strip():
                self._pending = _Pending(self._submit([query]), len(self.last))
        if (pending := self._pending) is None:
            return
        ends, ticket, found, blocked_ms = number % self.chunk_tokens == 0, pending.ticket, None, 0.0
        if ends and self._waits:
            begun = time.perf_counter()
            found = self._wait(ticket)
            blocked_ms = 1e3 * (time.perf_counter() - begun)
        elif (ends or pending.overdue) and ticket.done():
            found = ticket.result(0)
        if found is not None:
            self._take(found[0], blocked_ms)
        elif ends:
            ticket.result(0)  # marks the ticket as late
            pending.overdue = True

    def end(self) -> None:
        """The answer is over: nobody waits for what is under way."""
        failed = self.failed
        self._give_up("they had not come when the answer ended")
        self.failed = failed  # memories for tokens that never were are not missed

    def _submit(self, queries: Tokens[str]) -> Ticket:
        assert self.worker is not None
        also = self.also.base if self.also is not None else None
        return self.worker.submit(queries, deadline_s=self._policy.deadline_s, also=also)

    def _give_up(self, why: str) -> None:
        """Cancel what is under way; its event has state "skipped" if its chunk has begun."""
        if (pending := self._pending) is None:
            return
        pending.ticket.cancel()
        if pending.overdue:
            self._take(without(pending.ticket.queries, "CANCELLED", why, "skipped")[0])
        self._pending = None

    def _take(self, found: Recall, blocked_ms: float = 0.0) -> None:
        """The end of what was under way."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        self._swap(pending.chunk, found, blocked_ms, generated=True)

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
            position=len(self._sequence.tokens), blocked_ms=waited_ms + inject_ms,
        )  # fmt: skip
        self.news.append(recalled)
        self.last[chunk] = recalled

    def _wait(self, ticket: Ticket) -> list[Recall]:
        """What the ticket holds when it is done, the time is over, or the answer is cancelled."""
        waiting = weakref.ref(ticket)  # whoever may cancel must not keep memories alive

        def cancel() -> None:
            if (left := waiting()) is not None:
                left.cancel()

        self._cancellation.when_cancelled(cancel)
        return ticket.result(self._policy.deadline_s + GRACE_S)
