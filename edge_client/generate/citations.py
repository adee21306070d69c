"""`AttentionLog`: which memories the tokens of an answer attended to; `spans_of`: what parts of its text they gave.

Nothing of it is computed inside a step: a step leaves its queries, and the shares follow when the memories change or
the answer ends. Spans are of whole words: a word's later tokens follow from the first ones as much as from a memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from edge_client.decoder.sequence import CachedSequence
from edge_client.recall.outcome import MemoryRead
from edge_client.stream import AnswerAttention, Span
from memory3.runtime.attention import AttentionShares, QueryRecord
from memory3.text.references import sentence_ranges
from memory3.text.tokenizer import Tokenizer
from memory3.text.verdict import forms_in, has_numbers
from memory3.text.words import ALONE, UNSPACED

LEAST_SHARE = 0.02
"""Of all attention: below it no source is named."""
LEAST_LEAD = 1.25
"""How many times the share of the second memory the first one's must be: below it nobody knows which was read."""
_WORD = re.compile(r"\w")
_UNSPACED = re.compile(f"[{ALONE}{UNSPACED}]")
"""A character of a script without spaces between words."""


class AttentionLog:
    """The shares of one answer's tokens. One thread at a time, that of the answer.

    reading: returns what was recalled into the slots, in their order, refused memories among it. record: the queries of
    tokens whose shares are not computed yet.
    """

    def __init__(self, sequence: CachedSequence, reading: Callable[[], Sequence[MemoryRead]]) -> None:
        self._sequence, self._reading, self.record = sequence, reading, QueryRecord()
        self._rows: list[int] = []  # of the tokens after which the next tokens were chosen
        self._parts: list[tuple[tuple[MemoryRead, ...], AttentionShares]] = []

    def begin(self) -> None:
        """Record from now on; the sequence has begun."""
        if self._sequence.memory:
            self._sequence.record, self._sequence.on_change = self.record, self._flush

    def generated(self) -> None:
        """A token was chosen by the logits of the last run."""
        if self._sequence.record is not None:
            self._rows.append(self._sequence.length - 1)

    def end(self) -> None:
        """Record no longer. Idempotent."""
        self._sequence.record = self._sequence.on_change = None

    def result(self) -> AnswerAttention:
        """The shares of all tokens so far."""
        self._flush()
        return AnswerAttention(tuple(self._parts))

    def _flush(self) -> None:
        """Compute the shares of the tokens that read the memories which are in the slots now."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        shares = self._sequence.shares(self.record.take(rows), rows)
        read = tuple(memory for memory in self._reading() if not memory.refused)
        if len(read) != shares.memories.shape[1]:  # from an earlier answer, which knew them
            shares, read = AttentionShares(shares.memories[:, :0], shares.tokens[:, :0]), ()
        self._parts.append((read, shares))


def spans_of(attention: AnswerAttention, texts: Sequence[str], tokenizer: Tokenizer) -> tuple[Span, ...]:
    """The spans of an answer. texts: of its tokens' events, in parallel with the tokens of `attention`."""
    memories, shares = attention.memories, attention.shares
    if not memories:
        return ()
    answer = "".join(texts)
    known = [forms_in([memory.text]) if memory.text else None for memory in memories]
    found: list[tuple[int, int, int, list[int]]] = []  # memory, characters, tokens
    for start, end, tokens in _words(texts):
        means = np.where(_may_give(answer[start:end], known), shares[tokens].mean(axis=0), 0)
        best = int(means.argmax())
        second = float(np.partition(means, -2)[-2]) if len(means) > 1 else 0.0
        if means[best] < max(LEAST_SHARE, LEAST_LEAD * second):
            best = -1
        if found and found[-1][0] == best:
            _, first, _, earlier = found.pop()
            start, tokens = first, [*earlier, *tokens]
        found.append((best, start, end, tokens))
    return tuple(
        Span(
            start,
            end,
            memories[best],
            float(shares[tokens, best].mean()),
            _passage(memories[best], attention.within(memories[best])[tokens].sum(axis=0), tokenizer),
        )
        for best, start, end, tokens in found
        if best >= 0
    )


def _may_give(word: str, known: Sequence[frozenset[str] | None]) -> np.ndarray:
    """Which memories a word may be from, bool [memories]: a number only from texts that have it, where one has.

    A model that looks for a value in one memory may copy that of another, and people would look for it in vain.
    known: the forms in each memory's text, None where that is not known.
    """
    every = np.ones(len(known), bool)
    if not any(map(str.isdigit, word)):
        return every
    holding = np.array([forms is None or has_numbers(word, forms) for forms in known])
    return holding if holding.any() else every


def _words(texts: Sequence[str]) -> list[tuple[int, int, list[int]]]:
    """Words of an answer, punctuation included: first character, end, and the tokens that are part of it."""
    words: list[tuple[int, int, list[int]]] = []
    shown, waiting = "", list[int]()
    for number, text in enumerate(texts):
        waiting.append(number)
        if not text:
            continue
        start, end = len(shown) + len(text) - len(text.lstrip()), len(shown) + len(text.rstrip())
        if words and start == len(shown) and _goes_on(shown, text):
            first, _, tokens = words.pop()
            words.append((first, max(end, start), [*tokens, *waiting]))
        elif start < end:
            words.append((start, end, waiting))
        shown, waiting = shown + text, []
    return words


def _goes_on(shown: str, text: str) -> bool:
    """Whether a text that follows without a space is of the word, or the number, before it."""
    before, after = shown[-1:], text[:1]
    if before.isspace() or after.isspace():
        return False
    return not _WORD.match(after) or not _UNSPACED.search(before + after)


def _passage(memory: MemoryRead, received: np.ndarray, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """The sentence of a memory's text that received most; received: of its single tokens."""
    if not memory.text or not received.any():
        return None
    offsets = tokenizer.offsets(memory.text)[: len(received)]
    best: tuple[float, tuple[int, int]] = (-1.0, (0, 0))
    for start, end in sentence_ranges(memory.text):
        inside = [n for n, (_, last) in enumerate(offsets) if start < last <= end]
        best = max(best, (float(received[inside].sum()), (start, end)))
    return best[1] if best[0] > 0 else None
