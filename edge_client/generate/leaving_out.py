"""What each memory contributed to an answer, by leaving it out: the answer's log-likelihood with it less that without.

The last part of the prompt and the answer are read again, with the memories that they read but one, once for every
memory. They follow one another: a run of several tokens is of one sequence (decision 0011), and limited by products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.decoder.kv import PROMPT_TOKENS
from edge_client.decoder.sequence import CachedSequence
from edge_client.errors import Cancellation
from edge_client.recall.outcome import MemoryRead
from edge_client.stream import Contribution, Recalled
from memory3.codec.payload import ExplicitMemory


@dataclass(frozen=True)
class Played:
    """An answer that is over. prompt, generated: its tokens. recalls: the last event of every chunk, with memories."""

    sequence: CachedSequence
    prompt: Sequence[int]
    generated: Sequence[int]
    recalls: Sequence[Recalled]

    @property
    def swaps(self) -> list[tuple[int, tuple[tuple[MemoryRead, ExplicitMemory], ...]]]:
        """Where in the text memories took the slots, and which; empty where it is not known any more."""
        found = []
        for recalled in sorted(self.recalls, key=lambda r: r.position):
            recall = recalled.recall
            if recall.error:
                continue  # those of before were read on
            read = [memory for memory in recall.read if not memory.refused]
            if len(read) != len(recall.memories):
                return []
            found.append((recalled.position, tuple(zip(read, recall.memories, strict=True))))
        # Where turns left the cache meanwhile, the text begins elsewhere.
        whole = len(self.prompt) + len(self.generated) - 1 == len(self.sequence.tokens)
        return found if whole else []


def contributions(played: Played, cancellation: Cancellation) -> tuple[Contribution, ...]:
    """Of every memory that the answer recalled, the largest first; none where what it read is not known any more.

    Raises CancelledError.
    """
    if not (swaps := played.swaps):
        return ()
    memories = {read.memory_id: read for _, own in swaps for read, _ in own}
    whole = _log_likelihood(played, None, cancellation)
    found = [
        Contribution(read, whole - _log_likelihood(played, number, cancellation)) for number, read in memories.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.nats))


def _log_likelihood(played: Played, without: int | None, cancellation: Cancellation) -> float:
    """Of the generated tokens, in nats. without: id of the memory that is left out."""
    total, first = 0.0, len(played.prompt)
    swaps = played.swaps
    sequence = played.sequence.fork(swaps[0][0])
    text = [*played.prompt, *played.generated]
    try:
        ends = [*(position for position, _ in swaps[1:]), len(text) - 1]
        for (start, read), end in zip(swaps, ends, strict=True):
            sequence.inject([memory for one, memory in read if one.memory_id != without])
            for begin, stop in _pieces(start, end, first):
                cancellation.check()
                logits = sequence.read(text[begin:stop], all_logits=begin >= first - 1)
                if begin >= first - 1:
                    total += _log_probabilities(logits, text[begin + 1 : stop + 1])
    finally:
        sequence.end()
    return total


def _pieces(start: int, end: int, first: int) -> Iterator[tuple[int, int]]:
    """Parts of a text, PROMPT_TOKENS at most; one begins at token `first` - 1, after which `first` is predicted."""
    while start < end:
        stop = min(start + PROMPT_TOKENS, end)
        if start < first - 1 < stop:
            stop = first - 1
        yield start, stop
        start = stop


def _log_probabilities(logits: np.ndarray, tokens: Sequence[int]) -> float:
    largest = logits.max(axis=1)
    sums = np.exp(logits - largest[:, None]).sum(axis=1, dtype=np.float64)
    chosen = logits[np.arange(len(tokens)), tokens]
    return float((chosen - largest - np.log(sums)).sum())
