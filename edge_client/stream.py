"""`AnswerStream`: the events of one answer as an iterator that other threads may cancel, and the events themselves.

An answer is a sequence of Recalled, Remembered and Token events and ends with exactly one Finished. A Result is all of
them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from edge_client.errors import Cancellation, SessionBusy
from edge_client.recall.outcome import MemoryRead, Recall
from memory3.errors import InvalidInput
from memory3.runtime.attention import AttentionShares
from memory3.text.verdict import Verdict


@dataclass(frozen=True)
class Recalled:
    """A chunk got its memories, late or in time, or none.

    chunk: number of the recall in this answer; a late one comes a second time if its lateness was reported before.
    generated: whether the chunk was generated, else it is part of the prompt. position: text tokens of the
    conversation that had been read before; those from here on read these memories. kept: after an error, how
    many memories are read on from before. blocked_ms: for how long decoding stood still.
    """

    chunk: int
    generated: bool
    recall: Recall
    kept: int = 0
    position: int = 0
    blocked_ms: float = 0.0

    @property
    def state(self) -> str:
        """fetched, held, late, failed, skipped, offline: see `edge_client.recall.outcome.RecallState`."""
        return self.recall.state

    def as_json(self, *, texts: bool = True) -> dict[str, Any]:
        """JSON-ready values; memories without their vectors, and without what they say unless `texts`."""
        found = self.recall
        read = [
            {
                **asdict(m),
                "memory_id": f"{m.memory_id:016x}",
                "score": round(m.score, 4),
                "source": m.source,
                "page": m.page,
            }
            for m in found.read
        ]
        for memory in [] if texts else read:
            del memory["text"]
        return {
            **{name: getattr(self, name) for name in ("chunk", "generated", "position", "state", "kept")},
            **{name: getattr(found, name) for name in ("error", "service_error", "query", "by_text")},
            "read": read,
            "times": {name: round(ms, 3) for name, ms in asdict(found.times).items()},
            "blocked_ms": round(self.blocked_ms, 3),
        }


@dataclass(frozen=True)
class Remembered:
    """The oldest turns of a conversation left the cache and are memories now, which later chunks may read.

    turns: their numbers, from 1. references: memories that were written for them. error: `REASON: message` of what
    could not be written; it is tried again when the next turns leave.
    """

    turns: tuple[int, ...]
    references: int
    error: str = ""


@dataclass(frozen=True)
class TokenLogprob:
    """A token that was likely, with the natural logarithm of its probability."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class Token:
    """A token was generated, the end of the turn included.

    text: what may be shown now, whole characters only and nothing that may become a stop string, so often
    empty or of several tokens; white space in front of an answer is not shown. logprob, top_logprobs: with the option
    `logprobs`, of the model's own distribution, before any option changes it; top_logprobs are the likeliest tokens,
    best first.
    """

    id: int
    text: str
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Statistics:
    """What an answer cost. Times in milliseconds, without the time in which the caller held an event.

    first_token_ms: from the call to the first token, prompt recall included. tokens_per_s: of the generated
    tokens after the first. decoder_ms: inside the decoder's runs. overhead_ms: neither in the decoder nor
    blocked by recalling: drawing, text, bookkeeping. recalls: chunks with a request, by their last state in
    `states`, and those without memories by what failed in `reasons`. prompt_blocked_ms and blocked_ms: how long
    recalling held up the prompt and the generated chunks. drafted_tokens: that were run before they were chosen;
    accepted_tokens: those of them that were chosen then.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    first_token_ms: float = 0.0
    tokens_per_s: float = 0.0
    decoder_ms: float = 0.0
    overhead_ms: float = 0.0
    recalls: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    generated_recalls: int = 0
    prompt_blocked_ms: float = 0.0
    blocked_ms: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def recall_ms(self) -> float:
        """Time for which decoding stood still for memories, prompt included."""
        return self.prompt_blocked_ms + self.blocked_ms

    @property
    def blocked_ms_per_chunk(self) -> float:
        """The same for one generated chunk, on average; 0 without one."""
        return self.blocked_ms / self.generated_recalls if self.generated_recalls else 0.0


@dataclass(frozen=True)
class Span:
    """Characters `start` to `end` of an answer that were read from a memory.

    score: the mean share of attention that the memory got while they were generated, of all attention of the heads that
    read memories. passage: the characters of `memory.text` that got most of it, whole sentences; None where the text is
    not known or the heads keep only some of a memory's tokens.
    """

    start: int
    end: int
    memory: MemoryRead
    score: float
    passage: tuple[int, int] | None = None

    def as_json(self) -> dict[str, Any]:
        """JSON-ready values; the memory by id and source."""
        memory = {"memory_id": f"{self.memory.memory_id:016x}", "source": self.memory.source}
        return {"start": self.start, "end": self.end, "score": round(self.score, 4), "passage": self.passage, **memory}


@dataclass(frozen=True)
class AnswerAttention:
    """How the attention of every generated token was shared by the memories that it read.

    parts: tokens in a row that read the same memories, with the shares of each in the same order.
    """

    parts: tuple[tuple[tuple[MemoryRead, ...], AttentionShares], ...] = ()

    @property
    def memories(self) -> tuple[MemoryRead, ...]:
        """The memories that could be read, each once."""
        return tuple({memory.memory_id: memory for read, _ in self.parts for memory in read}.values())

    @property
    def shares(self) -> np.ndarray:
        """float32 [tokens, memories], in the order of `memories`; 0 where a token could not read a memory."""
        columns = {memory.memory_id: number for number, memory in enumerate(self.memories)}
        found = []
        for read, own in self.parts:
            part = np.zeros((len(own.memories), len(columns)), np.float32)
            part[:, [columns[memory.memory_id] for memory in read]] = own.memories
            found.append(part)
        return np.concatenate(found) if found else np.zeros((0, 0), np.float32)

    def within(self, memory: MemoryRead) -> np.ndarray:
        """float32 [tokens, reference tokens]: shares of a memory's single tokens, of heads that keep all of them."""
        found = []
        for read, own in self.parts:
            part = np.zeros(own.tokens.shape[::2], np.float32)
            for number, one in enumerate(read):
                if one.memory_id == memory.memory_id:
                    part += own.tokens[:, number]
            found.append(part)
        return np.concatenate(found) if found else np.zeros((0, 0), np.float32)


@dataclass(frozen=True)
class Contribution:
    """How much likelier a memory made the answer: nats that its log-likelihood loses where the memory is left out."""

    memory: MemoryRead
    nats: float


@dataclass(frozen=True)
class Finished:
    """The answer is complete.

    reason: end (the model ended its turn), stop (a stop string), length (max_tokens), context (the cache is
    full), repetition (the same passage was generated over and over) or cancelled. without_memory: a chunk has
    no memories because they were unavailable. refused: the answer is a refusal; see `memory3.text.refusal`. spans and
    attention: with the option `citations`, in the order of the text. contributions: with `explain`, the largest first.
    verdict: what the answer rests on, by the words of what was read and, with `citations`, by attention; None where
    it is not known: of a cancelled answer, one of a grammar, and one that read memories whose texts are not known.
    memory_error: `REASON: message` of what failed where a chunk went without memories, or without those of the service;
    empty where nothing failed. What was not read then may hold the answer, whatever the verdict says.
    """

    text: str
    reason: str
    statistics: Statistics
    without_memory: bool
    refused: bool = False
    spans: tuple[Span, ...] = ()
    attention: AnswerAttention | None = field(default=None, repr=False, compare=False)
    contributions: tuple[Contribution, ...] = ()
    verdict: Verdict | None = None
    memory_error: str = ""

    @property
    def cited(self) -> tuple[MemoryRead, ...]:
        """The memories that the spans were read from, each once, those that gave most of the text first."""
        given: dict[int, float] = {}
        for span in self.spans:
            got = given.get(span.memory.memory_id, 0.0)
            given[span.memory.memory_id] = got + span.score * (span.end - span.start)
        memories = {span.memory.memory_id: span.memory for span in self.spans}
        return tuple(memories[memory_id] for memory_id in sorted(given, key=lambda one: -given[one]))


Event = Recalled | Remembered | Token | Finished
"""What an answer is iterated as."""


@dataclass(frozen=True)
class Result(Finished):
    """A whole answer. recalls: the last event of every chunk, without the memories' keys and values."""

    recalls: tuple[Recalled, ...] = ()

    @property
    def memories(self) -> tuple[MemoryRead, ...]:
        """The memories that were read, each once, in the order of the chunks; refused ones are left out."""
        read = (memory for recalled in self.recalls for memory in recalled.recall.read if not memory.refused)
        return tuple({memory.memory_id: memory for memory in read}.values())

    @property
    def errors(self) -> tuple[str, ...]:
        """Why chunks went without new memories: each `REASON: message` once."""
        return tuple(dict.fromkeys(r.recall.error for r in self.recalls if r.recall.error))


class EventSource(Protocol):
    """What computes the events of an answer: `generate.loop.Answer` or `generate.whole.DocumentAnswer`."""

    @property
    def recalled(self) -> tuple[Recalled, ...]:
        """The last event of every chunk, without the memories' keys and values."""

    def events(self) -> Iterator[Event]:
        """The events, each computed when it is requested; closing the iterator ends the answer."""

    def keep(self, tokens: int) -> None:
        """Forget all but the first so many generated tokens, which are all that the reader received."""


class AnswerStream(Iterator[Event]):
    """Events of an answer, each computed when it is requested. Ends after Finished.

        print(stream.text())                    # the whole text
        for delta in stream.deltas: ...         # its pieces as they come
        for event in stream: ...                # Recalled, Token, Finished
        stream.result()                         # text, memories, statistics
        async for delta in stream.adeltas: ...  # in asyncio: a thread computes, the loop stays free
        async for event in stream: ...
        await stream.aresult()

    One thread at a time may iterate; a second one gets SessionBusy. `cancel` may be called from any thread:
    within one step of the decoder the iteration gets Finished with reason "cancelled". Leaving the loop early
    (break, an exception, close, dropping it) ends the answer as well, without that event. So does cancelling the task
    that reads; what it did not receive then is no part of the conversation.

    over: whether the answer is. done: called once, when it is over in whatever way.
    """

    def __init__(self, answer: EventSource, cancellation: Cancellation, done: Callable[[], None]) -> None:
        self._answer = answer
        self._cancellation = cancellation
        self._events = answer.events()
        self._done = done
        self._step = threading.Lock()  # held while a thread computes or closes
        self._begun = self.over = False
        self._end: Finished | None = None

    def __next__(self) -> Event:
        # Who closes has cancelled before and holds the lock for a moment; anybody else who holds it computes.
        if not self._step.acquire(blocking=self._cancellation.cancelled()):
            raise SessionBusy("another thread is reading this answer: one thread at a time")
        self._begun = True
        try:
            event = next(self._events)
            if isinstance(event, Finished):
                self._end = event
                self._finish()
            return event
        except BaseException:
            self._finish()
            raise
        finally:
            self._step.release()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """A thread of its own computes; an answer that is left early is recorded with the tokens that were taken."""
        loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "memory3-answer")
        received, mine = 0, True
        try:
            while (event := await loop.run_in_executor(thread, next, self, None)) is not None:
                received += isinstance(event, Token)
                yield event
        except SessionBusy:
            mine = False  # another reader's answer, which goes on
            raise
        finally:
            if mine and not self.over:
                self.cancel()
                await asyncio.shield(loop.run_in_executor(thread, self.close, received))
            thread.shutdown(wait=False)

    async def aresult(self) -> Result:
        """As `result`, in asyncio."""
        async for _ in self:
            pass
        return self.result()

    @property
    def deltas(self) -> Iterator[str]:
        """The answer's text, piece by piece."""
        return (event.text for event in self if isinstance(event, Token) and event.text)

    @property
    def adeltas(self) -> AsyncIterator[str]:
        """As `deltas`, in asyncio."""
        return (event.text async for event in self if isinstance(event, Token) and event.text)

    def text(self) -> str:
        """The answer's whole text."""
        return self.result().text

    def result(self) -> Result:
        """The whole answer, events that were read before included; raises InvalidInput if it was closed early."""
        for _ in self:
            pass
        if self._end is None:
            raise InvalidInput("the answer was closed before its end: there is no result")
        return Result(**vars(self._end), recalls=self._answer.recalled)

    @property
    def abandoned(self) -> bool:
        """Whether nothing of it was read yet, or it was cancelled: ending it takes nothing from a reader."""
        return not self._begun or self._cancellation.cancelled()

    def cancel(self) -> None:
        """End the answer after the step that the decoder is in, at most. Any thread; idempotent."""
        self._cancellation.cancel()

    def close(self, received: int | None = None) -> None:
        """Cancel, wait for a step that is under way in another thread, and give the caches back. Idempotent.

        received: tokens that the reader got; only these are part of the conversation. Not to be called by a signal
        handler, which may interrupt the very step that is waited for: `cancel` there.
        """
        self.cancel()
        with self._step:
            if received is not None and not self.over:
                self._answer.keep(received)
            self._finish()

    def wait_for_step(self) -> None:
        """Return when no thread is inside a step."""
        with self._step:
            pass

    def _finish(self) -> None:
        if not self.over:
            self.over = True
            self._events.close()  # type: ignore[attr-defined]  # a generator
            self._done()

    def __del__(self) -> None:
        # Nobody can be iterating what nobody holds.
        if not getattr(self, "over", True):
            self._cancellation.cancel()
            self._finish()
