"""One answer from its prompt to its last event: the device's read path, as production runs it.

prompt   messages -> tokens -> chunks of 64          memory3.chat, generate.prompt
recall   chunk -> query vector -> hits -> memories   ChunkRecalls, recall.worker, recall.recaller
inject   memories -> slots of the caches             decoder.sequence, decoder.kv
decode   tokens -> logits -> token                   decoder.batch, generate.sampling
stream   tokens -> text, events                      generate.sampling, stream

When a generated chunk's memories are requested, and when they reach the slots, is the mode's:
    exact     at a chunk's end request, wait (up to the deadline), swap
    overlap   `lead_tokens` before a chunk's end request; at its end swap if they are there, else when they come
    off       never
A prompt waits for its memories in both modes.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from concurrent.futures import CancelledError, TimeoutError
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from edge_client.decoder.sequence import Sequence
from edge_client.errors import Cancellation
from edge_client.generate.prompt import asks, cut
from edge_client.generate.sampling import Picked, Sampler, Sampling, StreamText
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import Recall, without
from edge_client.recall.worker import Ticket
from edge_client.stream import Event, Finished, Recalled, Statistics, Token, TokenLogprob
from memory3.chat import Prompt
from memory3.refusal import is_refusal

if TYPE_CHECKING:
    from edge_client.generate.conversation import Conversation, Past
    from edge_client.model import EdgeModel


GRACE_S = 0.1
"""A wait lasts this much longer than the ticket, so that it is the worker who learns that the service is slow."""


class Answer:
    """Reads a prompt and generates, in one iteration of `events`. One thread at a time.

    sequence: the conversation's key-values; they keep what was read. cancellation: tested before every run of the
    decoder and every token. conversation: whose turns may leave the cache while the answer goes on, and whose own
    memories are read; None for an answer that nothing follows.
    """

    def __init__(
        self,
        model: EdgeModel,
        sequence: Sequence,
        prompt: Prompt,
        sampling: Sampling,
        policy: RecallPolicy,
        cancellation: Cancellation,
        conversation: Conversation | None = None,
    ) -> None:
        self._sequence, self._prompt, self._sampling = sequence, prompt, sampling
        self._tokenizer = tokenizer = model.bundle.tokenizer
        self._sampler = Sampler(sampling, sequence.decoder.config.vocabulary, prompt.ids)
        self._stream = StreamText(tokenizer, sampling.stop)
        self._cancellation, self._conversation = cancellation, conversation
        self._recalls = ChunkRecalls(model, sequence, prompt, policy, cancellation)
        self._ends = set(tokenizer.stop_ids)
        self._refusal = model.bundle.manifest.refusal
        self._refuses = self._refusal.first_token(tokenizer)
        self._generated: list[int] = []
        self._texts: list[str] = []  # of the tokens' events, in parallel
        self._reason = ""
        self._begun = self._away_s = self._first_token_s = 0.0

    def events(self) -> Iterator[Event]:
        """Recalled and Token events as they happen, then Finished, which also ends a cancelled answer.

        Closing the iterator early leaves nothing running, and what was read stays cached.
        """
        self._begun = time.perf_counter()
        decoder_s, reused = self._sequence.decoder_s, 0
        try:
            if self._conversation is not None:
                self._conversation.settle(self._cancellation)
                self._recalls.also = self._conversation.past
            reused = self._sequence.begin(self._prompt.ids, memory=self._recalls.worker is not None)
            for event in self._tokens(reused):
                left = time.perf_counter()
                yield event
                self._away_s += time.perf_counter() - left
        except CancelledError:
            self._reason = "cancelled"
        finally:
            self._recalls.end()
            self._sequence.end()
        yield from self._news()
        statistics = self._statistics(reused, self._sequence.decoder_s - decoder_s)
        refused = is_refusal(self.shown)
        yield Finished(self.shown, self._reason, statistics, self._recalls.failed, refused)

    def _tokens(self, reused: int) -> Iterator[Event]:
        """Read the prompt, then one token after the other; every 64 of them get the memories of the next 64.

        The first 64 read what the last chunk of the prompt read (paper 3.1). What a chunk reads is recalled
        `lead_tokens` before it begins, so that decoding need not stand still: 0 when it shall wait ("exact").
        """
        recalls = self._recalls
        logits = recalls.read_prompt(reused)
        yield from self._news()
        for number in count(1):
            first = number == 1 and not self._prompt.begun  # an answer that goes on has its first token behind it
            bias = self._refusal.bias_for(len(self._sequence.held.memories)) if first else 0.0
            picked = self._sampler.pick(logits[-1], (self._refuses, bias) if bias else None)
            self._cancellation.check()
            self._first_token_s = self._first_token_s or self._seconds()
            yield from self._news()
            yield self._token(picked)
            if self._conversation is not None and recalls.worker is not None:
                self._conversation.make_room(
                    self._cancellation, bool(self._reason) or number % recalls.chunk_tokens == 0
                )
                recalls.also = self._conversation.past
            if self._reason:
                return
            recalls.generated(picked.id, number)
            self._cancellation.check()
            logits = self._sequence.read([picked.id])

    def _token(self, picked: Picked) -> Token:
        """The event of a token; sets the reason if it is the last one."""
        text = "" if picked.id in self._ends else self._stream.push(picked.id)
        self._generated.append(picked.id)
        if picked.id in self._ends:
            self._reason = "end"
        elif self._stream.stopped:
            self._reason = "stop"
        elif len(self._generated) >= self._sampling.max_tokens:
            self._reason = "length"
        elif self._sequence.full:
            self._reason = "context"
        if self._reason:
            text += self._stream.flush()
        self._texts.append(text)
        top = tuple(TokenLogprob(i, self._tokenizer.piece(i), logprob) for i, logprob in picked.top)
        return Token(picked.id, text, picked.logprob, top)

    def _news(self) -> list[Event]:
        own = self._conversation.news if self._conversation is not None else []
        news: list[Event] = [*own, *self._recalls.news]
        own.clear()
        self._recalls.news.clear()
        return news

    @property
    def began(self) -> bool:
        """Whether a token was generated."""
        return bool(self._generated)

    @property
    def shown(self) -> str:
        """The text of all events so far."""
        return "".join(self._texts)

    @property
    def said(self) -> list[int] | None:
        """The generated tokens that spell the shown text, or None where a stop string or a cancellation cut it."""
        tokens = [t for t in self._generated if t not in self._ends]
        return tokens if self._tokenizer.decode(tokens) == self.shown else None

    @property
    def recalled(self) -> tuple[Recalled, ...]:
        """The last event of every chunk, without the memories' keys and values, which are megabytes."""
        return tuple(replace(r, recall=replace(r.recall, memories=())) for r in self._recalls.last.values())

    def keep(self, tokens: int) -> None:
        """Forget all but the first so many tokens: the caller never received the others."""
        del self._generated[tokens:], self._texts[tokens:]

    def _seconds(self) -> float:
        """Since the call, without the time in which the caller held an event."""
        return time.perf_counter() - self._begun - self._away_s

    def _statistics(self, reused: int, decoder_s: float) -> Statistics:
        seconds, number = self._seconds(), len(self._generated)
        last = list(self._recalls.last.values())
        prompt = sum(r.blocked_ms for r in last if not r.generated)
        blocked = sum(r.blocked_ms for r in last if r.generated)
        decoding_s = max(seconds - self._first_token_s, 1e-9)
        return Statistics(
            prompt_tokens=len(self._prompt.ids),
            reused_tokens=reused,
            generated_tokens=number,
            first_token_ms=1e3 * self._first_token_s,
            tokens_per_s=(number - 1) / decoding_s if number > 1 else 0.0,
            decoder_ms=1e3 * decoder_s,
            overhead_ms=1e3 * (seconds - decoder_s) - prompt - blocked,
            recalls=len(last),
            states=dict(Counter(r.state for r in last)),
            generated_recalls=sum(r.generated for r in last),
            prompt_blocked_ms=prompt,
            blocked_ms=blocked,
        )


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
        self,
        model: EdgeModel,
        sequence: Sequence,
        prompt: Prompt,
        policy: RecallPolicy,
        cancellation: Cancellation,
        also: Past | None = None,
    ) -> None:
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

        One call recalls for all chunks. Raises CancelledError.
        """
        held = bool(self._sequence.held.memories)
        chunks = cut(self._prompt, self._tokenizer, self.chunk_tokens, reused, held=held)
        queries = [chunk.query for chunk in chunks if chunk.query is not None]
        begun = time.perf_counter()
        found = iter(self._wait(self._submit(queries)) if queries and self.worker is not None else [])
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
        pending.ticket.end()
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
            chunk,
            generated,
            replace(found, times=times),
            kept=kept if found.error else 0,
            position=len(self._sequence.tokens),
            blocked_ms=waited_ms + inject_ms,
        )
        self.news.append(recalled)
        self.last[chunk] = recalled

    def _wait(self, ticket: Ticket) -> list[Recall]:
        """What the ticket holds when it is done or the answer is cancelled, or that the time is over."""
        waiting = weakref.ref(ticket)  # whoever may cancel must not keep memories alive

        def cancel(_: object) -> None:
            if (left := waiting()) is not None:
                left.end()

        self._cancellation.add_done_callback(cancel)
        limit_s = self._policy.deadline_s + GRACE_S
        try:
            return ticket.result(limit_s)
        except TimeoutError:
            message = f"no memories {limit_s:g} s after they were needed"
            return without(ticket.queries, "DEADLINE_EXCEEDED", message, "late")
