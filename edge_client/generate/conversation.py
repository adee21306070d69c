"""`Conversation`: messages, key-values of the last turns, and `Past`, memories of those before them (decision 0037).

    turn 1 … turn n                          turn n + 1 … question
    memories, retrieved chunk by chunk       text in the cache, from the first position on

When the cache is filled to a mark, the oldest turns become memories and the rest is read anew in another sequence,
with what the answer generates meanwhile; then that sequence replaces this one. So what is in the cache is always as if
the conversation had begun with what is kept, and positions stay in the context.

An answer that is under way shall not be noticeably slower for it. So all of it is done in the background, next to the
answer's steps and no faster than needed; what the answer itself reads at the end is a few tokens. Turns that will
leave are written ahead, at best between two answers. If the cache fills before all is done, the answer waits a moment
at every token rather than long at one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock

from edge_client.decoder.kv import PROMPT_TOKENS
from edge_client.decoder.sequence import CachedSequence
from edge_client.engine import Engine
from edge_client.errors import Cancellation, ModelClosed, described
from edge_client.generate.chunk_recalls import ChunkRecalls
from edge_client.generate.past import Past, Turn, turn_key
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import LocalSource
from edge_client.stream import Recalled, Remembered
from memory3.errors import Memory3Error
from memory3.text.chat import Message, Prompt

KEPT_SHARE = 0.5
"""Of the mark, what turns may keep when others leave: so rows are freed once in so many tokens, not at every turn."""
PINNED = 2
"""Last turns, the one under way included, that stay while the mark has room for them."""
CLOSE = 4
"""Largest lead of the answer, in tokens, at which the background's sequence replaces its own: two steps' time."""
SLOW_SHARE, SLOW_S = 1 / 16, 0.05
"""In the last share of the context, seconds that the answer waits per token for the background read."""
_POLL_S = 0.05


@dataclass(frozen=True)
class _Eviction:
    """Turns on their way out of the cache. fewer: tokens of the sequence that the new one does not read.

    ahead: before the answer has a token; its whole prompt is read in the background.
    """

    job: Future[tuple[CachedSequence, int, str, Sequence[Recalled]]]
    turns: tuple[int, ...]
    prompt: Prompt
    fewer: int
    ahead: bool = False


class Conversation:
    """What a chat session holds. One thread at a time.

    messages: all of them, the current question included. generated: by a message's number the tokens that the model
    generated for it. left: messages, behind the system's, that left the cache. past: memories of this conversation
    alone, or None. events: those that were not passed on yet.
    """

    def __init__(self, engine: Engine, messages: Sequence[Message], generated: Mapping[int, Sequence[int]]) -> None:
        self._engine = engine
        self.messages: list[Message] = [dict(m) for m in messages]
        self.generated = dict(generated)
        self.left = 0
        self.past: Past | None = None
        self.sequence = engine.sequence()
        self.events: list[Remembered] = []
        self._policy = engine.policy
        self._prompt = Prompt([], [])
        self._eviction: _Eviction | None = None
        self._recalls: Sequence[Recalled] | None = None
        self._turns_ahead = 0  # how many there were when turns were last written ahead
        self._making = Lock()

    @property
    def turns(self) -> list[int]:
        """The numbers of the messages with which turns begin: a person's."""
        return [n for n, m in enumerate(self.messages) if m["role"] == "user"]

    @property
    def memories(self) -> LocalSource | None:
        """The conversation's own memories, searched next to the knowledge bases; None where it has none."""
        return self.past.base if self.past is not None else None

    def prompt(self, policy: RecallPolicy) -> Prompt:
        """What the next answer reads as text; turns that leave for it are being written. policy: of that answer."""
        self._policy, self._prompt = policy, self._kept(self.left)
        if len(self._prompt.ids) >= self._engine.mark and self._evicts:
            self._evict([])
        return self._prompt

    def make_room(self, cancellation: Cancellation, chunk_ends: bool) -> None:
        """Between two steps of an answer: free rows of the oldest turns if the mark is reached, once they are written.

        Waits where the policy is `exact`, and where no further token fits. chunk_ends: or the answer.
        """
        text = self.sequence
        if chunk_ends and self._eviction is None and self._evicts:
            if text.length >= self._engine.mark:
                self._evict(text.tokens[len(self._prompt.ids) :])
            elif text.length >= KEPT_SHARE * self._engine.mark:
                self._write_ahead()
        if (eviction := self._eviction) is None:
            return
        left = text.decoder.context - text.length
        waits = self._policy.mode is RecallMode.exact or left <= CLOSE
        if not waits and left <= SLOW_SHARE * text.decoder.context:
            with self._engine.decoder.hurry():
                wait([eviction.job], SLOW_S)
        if (waits or eviction.job.done()) and self.settle(cancellation):
            self._prompt = eviction.prompt

    def settle(self, cancellation: Cancellation) -> bool:
        """Take over what the background reads, once it is done; whether there was something. Raises CancelledError."""
        if (eviction := self._eviction) is None:
            return False
        with self._engine.decoder.hurry():
            while not wait([eviction.job], _POLL_S).done:
                cancellation.check()
        self._eviction = None
        try:
            found, references, error, recalls = eviction.job.result()
        except ModelClosed:
            raise CancelledError from None
        except Memory3Error as failed:  # the text stays where it is as long as it fits
            self.events.append(Remembered(eviction.turns, 0, described(failed)))
            return False
        rest = self.sequence.tokens[len(found.tokens) + eviction.fewer :]
        held, ids = self.sequence.memories, self.sequence.memory_ids
        self.sequence.become(found)
        if rest:  # generated meanwhile
            self.sequence.inject(held, ids)
            self.sequence.read(rest)
        self.events.append(Remembered(eviction.turns, references, error))
        if eviction.ahead:
            self._recalls = recalls
        return True

    def take_recalls(self) -> Sequence[Recalled] | None:
        """The recalls of the prompt under way, once, if the background read it for this answer; else None."""
        recalls, self._recalls = self._recalls, None
        return recalls

    def take_back(self) -> str:
        """Drop the last turn, its memories included if it has left, and return its question."""
        *self.messages, question, _ = self.messages
        self.generated.pop(len(self.messages) + 1, None)
        stays = len(self.messages) - self.turns[0] if self.turns else 0
        if self.left > stays:
            self.settle(Cancellation())
            self.left = stays
            if self.past is not None:
                self.past.base.delete(turn_key(len(self.turns) + 1))
        return question["content"]

    def remembers(self, saved: bytes = b"") -> Past:
        """The conversation's own memories, made at the first need. Raises StorageError."""
        with self._making:
            self.past = self.past or Past(self._engine.writer, saved)
        self.sequence.source = object()  # rows that were read with them are for no other conversation
        return self.past

    @property
    def _evicts(self) -> bool:
        """Whether turns can become memories that are read."""
        return self._engine.bundle.writer is not None and self._policy.mode is not RecallMode.off

    def _evict(self, read_ids: Sequence[int]) -> None:
        """Let the oldest turns leave, in the background. read_ids: tokens of the answer that were read so far."""
        left = self._leaving(len(read_ids))
        kept = self._kept(left)
        if left == self.left or len(kept.ids) + len(read_ids) >= self._engine.decoder.room:
            return
        turns = self._gone(left)
        leaving = tuple(n for n, _ in turns[len(self._gone(self.left)) :])
        if self._eviction is not None:
            leaving = (*self._eviction.turns, *leaving)
        self.left = left
        whole = Prompt([*kept.ids, *read_ids], [*kept.content, *[True] * len(read_ids)])
        # The answer itself reads the last token of its prompt.
        read = whole if read_ids else Prompt(whole.ids[:-1], whole.content[:-1])
        fewer = len(self.sequence.tokens) - len(read.ids)
        job = self._engine.background.submit(self._write_and_read, turns, read, self._policy, fewer)
        self._eviction = _Eviction(job, leaving, kept, fewer, ahead=not read_ids)
        if not read_ids:
            self._prompt = kept

    def _write_ahead(self) -> None:
        """Write the turns, in the background, that would leave if they had to now; once for every turn."""
        if self._turns_ahead < (count := len(self.turns)):
            self._turns_ahead = count
            self._engine.background.submit(self._ahead, self._gone(self._leaving(0)))

    def _ahead(self, turns: Sequence[Turn]) -> None:
        with suppress(Exception):  # what cannot be written now is tried again, and reported, when it leaves
            with self._making:
                self.past = self.past or Past(self._engine.writer)
            self.past.write_ahead(turns, go_on=self._engine.closing.check)

    def _gone(self, left: int) -> list[Turn]:
        """The turns of so many messages that left; those that were written before are known by their number."""
        end = self.turns[0] + left if self.turns else 0
        return [(n, self.messages[at:to]) for n, (at, to) in enumerate(pairwise(self.turns), 1) if at < end]

    def _leaving(self, answer_tokens: int) -> int:
        """How many messages leave: the fewest whole turns after which the others keep their share of the mark.

        answer_tokens: of the answer under way.
        """
        turns, mark = self.turns, self._engine.mark
        first = turns[0] if turns else 0

        def fits(start: int) -> bool:
            bound = mark if start in turns[-PINNED:] else int(KEPT_SHARE * mark)
            return len(self._kept(start - first).ids) + answer_tokens < bound

        candidates = [start for start in turns[:-1] if start - first >= self.left]
        index = bisect_left(candidates, True, key=fits)
        return [*candidates, *turns[-1:], first][index] - first

    def _kept(self, left: int) -> Prompt:
        """The conversation without so many messages behind the system's."""
        first = self.turns[0] if left else 0
        numbers = [n for n in range(len(self.messages)) if not first <= n < first + left]
        generated = {index: self.generated[n] for index, n in enumerate(numbers) if n in self.generated}
        return self._engine.bundle.chat.prompt([self.messages[n] for n in numbers], generated=generated)

    def _write_and_read(
        self, turns: Sequence[Turn], prompt: Prompt, policy: RecallPolicy, fewer: int
    ) -> tuple[CachedSequence, int, str, Sequence[Recalled]]:
        """In the background: memories of the turns, and a sequence that has read the prompt with them at hand.

        And what the answer generated meanwhile. All is spread over the tokens that fit until answers must wait for it.
        """
        engine, answer, references, error = self._engine, self.sequence, 0, ""
        free = max(int((1 - SLOW_SHARE) * engine.decoder.context) - answer.length, 1)
        per_step = 1 + len(prompt.ids) / free
        try:
            past = self.remembers()
            unwritten = sum(len(texts) for _, texts in past.waiting(turns))
            per_step += unwritten * engine.bundle.config.memory.reference_tokens / free
            references = past.remember_turns(turns, per_step)
        except Exception as failed:  # costs these memories, not the conversation
            error = described(failed)
        text = engine.sequence(object())  # another one's rows were read without these memories
        text.per_step = per_step
        recalls = ChunkRecalls(engine, text, prompt, policy, engine.closing, self.memories)
        try:
            text.begin(prompt.ids, memory=True)
            recalls.read_prompt()
            while len(rest := answer.tokens[len(text.tokens) + fewer :]) > CLOSE:
                engine.closing.check()
                text.inject(answer.memories, answer.memory_ids)
                text.read(rest[:PROMPT_TOKENS])
        finally:
            recalls.end()
            text.end()
        return text, references, error, tuple(recalls.last.values())
