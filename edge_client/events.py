"""The events of an answer: memories recalled, tokens, and at the end what it all cost.

An answer is a sequence of Recalled, Remembered and Token events and ends with exactly one Finished. A Result is all of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edge_client.recall.recaller import MemoryRead, Recall


@dataclass(frozen=True)
class Recalled:
    """A chunk got its memories, late or in time, or none.

    chunk: number of the recall in this answer; a late one comes a second time if its lateness was told before.
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
        """fetched, held, late, failed, skipped, offline: see `edge_client.recall.recaller.RecallState`."""
        return self.recall.state


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
    empty or of several tokens. logprob, top_logprobs: with the option `logprobs`, of the model's own
    distribution, before any option changes it; top_logprobs are the likeliest tokens, best first.
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
    blocked by recalling: drawing, text, bookkeeping. recalls: chunks that asked, by their last state in
    `states`. prompt_blocked_ms and blocked_ms: how long recalling held up the prompt and the generated chunks.
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
    generated_recalls: int = 0
    prompt_blocked_ms: float = 0.0
    blocked_ms: float = 0.0

    @property
    def recall_ms(self) -> float:
        """Time for which decoding stood still for memories, prompt included."""
        return self.prompt_blocked_ms + self.blocked_ms

    @property
    def blocked_ms_per_chunk(self) -> float:
        """The same for one generated chunk, on average; 0 when none asked."""
        return self.blocked_ms / self.generated_recalls if self.generated_recalls else 0.0


@dataclass(frozen=True)
class Finished:
    """The answer is complete.

    reason: end (the model ended its turn), stop (a stop string), length (max_tokens), context (the cache is
    full) or cancelled. without_memory: a chunk went without memories because they could not be had. refused: the
    answer says that the model does not know; see `memory_model.refusal`.
    """

    text: str
    reason: str
    statistics: Statistics
    without_memory: bool
    refused: bool = False


Event = Recalled | Remembered | Token | Finished
"""What an answer is iterated as."""


@dataclass(frozen=True)
class Result:
    """A whole answer.

    text, reason, statistics, without_memory, refused: see Finished. recalls: the last event of every chunk, without the
    memories' keys and values.
    """

    text: str
    reason: str
    statistics: Statistics
    without_memory: bool
    recalls: tuple[Recalled, ...]
    refused: bool = False

    @property
    def memories(self) -> tuple[MemoryRead, ...]:
        """The memories that were read, each once, in the order of the chunks; refused ones are left out."""
        read = (memory for recalled in self.recalls for memory in recalled.recall.read if not memory.refused)
        return tuple({memory.memory_id: memory for memory in read}.values())

    @property
    def errors(self) -> tuple[str, ...]:
        """Why chunks went without new memories: each `REASON: message` once."""
        return tuple(dict.fromkeys(r.recall.error for r in self.recalls if r.recall.error))
