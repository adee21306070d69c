"""`CachedSequence`: the text of one conversation that the decoder has read, and the memories in its slots.

Holds tokens, positions and memories; text as characters and retrieval are outside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edge_client.decoder.kv import PROMPT_TOKENS
from edge_client.decoder.scheduler import Scheduler
from edge_client.decoder.slots import SequenceState, Slots
from edge_client.errors import ContextFull
from memory3.codec.payload import ExplicitMemory
from memory3.config import ModelConfig
from memory3.errors import InvalidInput
from memory3.runtime.attention import AttentionShares, attention_shares, memory_tensors
from memory3.text.chat import text_start

WORTH_COPYING = 16
"""Tokens that another sequence must have in common beyond this one's before its rows are copied."""


@dataclass(frozen=True)
class ReadChunk:
    """Tokens `start` to `end` of a prompt, read with the same memories.

    memory_ids: of those. missed: without those that they should have had.
    """

    start: int
    end: int
    memory_ids: tuple[int, ...] = ()
    missed: bool = False


class SequenceDecoder(Protocol):
    """What a sequence needs of its decoder, which is a `BatchingDecoder`."""

    config: ModelConfig
    prefix: list[int]
    context: int
    scheduler: Scheduler

    def sequence(self, source: object = None) -> CachedSequence:
        """One more sequence."""

    def others(self, sequence: CachedSequence) -> list[CachedSequence]:
        """Sequences whose rows this one can read."""

    def give_way(self, tokens: int, per_step: float) -> None:
        """Wait for the steps of others after so many tokens."""


class CachedSequence(SequenceState):
    """Made by `BatchingDecoder.sequence`. One thread at a time; other threads may use other sequences meanwhile.

    decoder_s: seconds spent reading, waiting for other sequences included. on_change: called before other memories take
    the slots, or other rows replace the text. The other attributes: see `SequenceState`.

    What was read is used again for a prompt that begins alike. Without memory that is every common token. With memory
    a chunk of a prompt reads memories by a query that depends on the text up to the chunk's end; so a chunk is kept if
    all of it is in the new prompt, and else read again from its start. A generated token depends on the text before
    it and is kept like that. So the text in the cache is always as if this conversation had been the first. Which
    memories a query finds may have changed since: `ChunkRecalls` compares, and forgets what was read with others.
    """

    def __init__(self, decoder: SequenceDecoder, source: object = None) -> None:
        super().__init__(source=source)
        self.decoder = decoder
        self.decoder_s = 0.0
        self.on_change: Callable[[], None] | None = None
        self._chunks: list[ReadChunk] = []  # as prompts were read
        self._begun: ReadChunk | None = None  # the one of which a part is read again first
        self.memory_ids: tuple[int, ...] = ()  # of the memories in the slots
        self._prompt_length = 0
        self._missed = False
        self._first_position = text_start(decoder.prefix, decoder.config.memory)

    @property
    def length(self) -> int:
        """Rows of text in the cache, the prefix's included."""
        return len(self.decoder.prefix) + len(self.tokens)

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self.decoder.context - self.length

    @property
    def full(self) -> bool:
        """Whether not one token more fits."""
        return self.room <= 0

    @property
    def position(self) -> int:
        """Rotary position of the next token; those of the memories lie between the prefix and the text."""
        return self._first_position + len(self.tokens)

    def begin(self, ids: Sequence[int], *, memory: bool) -> int:
        """Forget what is not part of the prompt `ids`; returns how many of its tokens need not be read.

        At least one is read, for its logits. Where another sequence has more of the prompt, its rows are copied.
        Where tokens were taken back the slots are empty, and the first chunk that is read must request memories.
        """
        return self.decoder.scheduler.call(lambda slots: self._begin(slots, ids, memory))

    def _begin(self, slots: Slots, ids: Sequence[int], memory: bool) -> int:
        kept = self.valid(ids, memory)
        goes_on = memory and kept == len(self.tokens)
        donor = max(self.decoder.others(self), key=lambda o: o.valid(ids, memory), default=self)
        if (copied := donor.valid(ids, memory)) >= kept + WORTH_COPYING:
            kept, goes_on = copied, False
            slots.copy(donor, self, kept)
            self._chunks = list(donor._chunks)
        elif memory != self.memory:
            slots.restart(self, memory)
        self._begun = next((c for c in self._chunks if c.start < kept < c.end), None)
        self._keep(kept)
        self._prompt_length, self._missed, self.over = len(ids), False, False
        if not goes_on:
            self.memory_ids = ()
            if self.memories:
                slots.inject(self, ())
        return kept

    def _keep(self, tokens: int) -> None:
        self._chunks = [c for c in self._chunks if c.end <= tokens]
        del self.tokens[tokens:]
        self.drafted.clear()

    def chunk_of(self, token: int) -> ReadChunk | None:
        """The chunk of the prompt, as it was read, that token number `token` of the text is in."""
        chunks = [*self._chunks, self._begun] if self._begun else self._chunks
        return next((c for c in chunks if c.start <= token < c.end), None)

    def forget(self, start: int) -> None:
        """Take back the text from token `start` on."""
        if self.on_change is not None:
            self.on_change()
        self._begun = None
        self.decoder.scheduler.call(lambda _: self._keep(start))

    def valid(self, ids: Sequence[int], memory: bool) -> int:
        """How many tokens of the prompt `ids` this sequence has read as they would be read now."""
        if memory != self.memory:
            return 0
        same = common_length(self.tokens, ids)
        goes_on = same == len(self.tokens) < len(ids)
        for chunk in self._chunks if memory else ():
            if chunk.start < same and (same < chunk.end or (chunk.missed and not goes_on)):
                same = chunk.start
        return max(min(same, len(ids) - 1), 0)

    def read(self, tokens: Sequence[int], *, all_logits: bool = False, draft: Sequence[int] = ()) -> np.ndarray:
        """Read tokens after those that are cached; returns logits float32 [1, vocabulary], or [n, vocabulary].

        The next read may overwrite the array. draft: what may follow a single token. It is run with that token where no
        other sequence steps at the same time, and reading it next, token by token, then costs no run.
        Raises InvalidInput, ContextFull (and then nothing changed), ProviderError.
        """
        begun = time.perf_counter()
        self._check([*tokens, *draft])
        start, end = len(self.tokens), len(self.tokens) + len(tokens)
        if start < self._prompt_length:
            first = self._begun.start if self._begun else start
            self._chunks.append(ReadChunk(first, end, self.memory_ids, self._missed))
        self._begun = None
        pieces = [tokens[n : n + PROMPT_TOKENS] for n in range(0, len(tokens), PROMPT_TOKENS)]
        found = [self._read(piece, all_logits, draft) for piece in pieces]
        self.decoder_s += time.perf_counter() - begun
        return np.concatenate(found) if all_logits else found[-1]

    def _read(self, tokens: Sequence[int], all_logits: bool, draft: Sequence[int]) -> np.ndarray:
        logits = self.decoder.scheduler.read(self, tokens, all_logits, draft)
        if self.per_step is not None:
            self.decoder.give_way(len(tokens), self.per_step)
        return logits

    def inject(self, memories: Sequence[ExplicitMemory], memory_ids: Sequence[int] = ()) -> None:
        """Read these memories from the next token on; those that are in the slots already cost nothing.

        memory_ids: theirs, which tell whether a chunk was read with the same ones.
        """
        self._missed, self.memory_ids = False, tuple(memory_ids)
        if len(memories) == len(self.memories) and all(a is b for a, b in zip(memories, self.memories, strict=True)):
            return
        if not self.memory:
            raise InvalidInput("this sequence was begun without memory")
        if self.on_change is not None:
            self.on_change()
        self.decoder.scheduler.call(lambda slots: slots.inject(self, memories))

    def shares(self, queries: np.ndarray, rows: Sequence[int]) -> AttentionShares:
        """How the attention of tokens is shared by the memories in the slots now.

        rows: the tokens' text rows, ascending, prefix included. queries: of them, as `QueryRecord.take` returns them.
        """
        names = [tensor.keys for tensor in memory_tensors(self.decoder.config)]
        keys, memories = self.decoder.scheduler.call(
            lambda slots: (slots.read_text(self, rows[-1] + 1, names), slots.on_host(self.memories))
        )
        first = self._first_position - len(self.decoder.prefix)
        positions = [first + row for row in rows]
        return attention_shares(self.decoder.config, queries, rows, positions, keys, memories)

    def fork(self, tokens: int) -> CachedSequence:
        """Another sequence, not over, that has read the first tokens of this one; no other one copies its rows."""
        made = self.decoder.sequence(object())
        self.decoder.scheduler.call(lambda slots: slots.copy(self, made, tokens))
        made.over = False
        return made

    def miss(self) -> None:
        """The next chunk's memories could not be had: another answer to the same prompt reads the chunk again."""
        self._missed = True

    def end(self) -> None:
        """The answer is over: other sequences need not wait for this one, and may have its slot."""
        self.over = True
        self.decoder.scheduler.wake()

    def become(self, other: CachedSequence) -> None:
        """Hold what another sequence of the same decoder has read, where it lies; the other one is empty then."""
        if self.on_change is not None:
            self.on_change()
        self.decoder.scheduler.call(lambda slots: self._become(slots, other))

    def _become(self, slots: Slots, other: CachedSequence) -> None:
        slots.move(other, self)
        self._chunks, self._begun, self.memory_ids = other._chunks, other._begun, other.memory_ids
        self._prompt_length, self._missed, self.source = other._prompt_length, other._missed, other.source
        other._chunks = []

    def _check(self, tokens: Sequence[int]) -> None:
        vocabulary, context = self.decoder.config.vocabulary, self.decoder.context
        if not tokens:
            raise InvalidInput("the decoder needs at least one token")
        if min(tokens) < 0 or max(tokens) >= vocabulary:
            raise InvalidInput(f"token ids must be 0 to {vocabulary - 1}")
        if self.length + len(tokens) > context:
            raise ContextFull(
                f"{self.length} tokens are cached and {len(tokens)} more do not fit into {context}",
                help="start a new conversation, or open the model with a longer context",
            )


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How many tokens, or messages, two sequences begin with in common."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
