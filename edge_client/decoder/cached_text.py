"""The text that a decoder has read, and the memories in its slots: what one conversation costs in memory.

Knows tokens, positions and memories; knows nothing about text as letters, or how memories are found.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from edge_client.decoder.graph import DecoderGraph
from edge_client.decoder.runner import OnnxDecoder
from edge_client.generate.prompt import common_length
from edge_client.recall.recaller import Recall
from memory_model.chat import text_start

NOTHING = Recall("", state="off")


class CachedText:
    """One decoder's caches with the token ids that are in them. One thread at a time.

    prefix: the modified BOS, read at once and kept for ever (paper 3.2). The positions of the memories lie
    between it and the text.
    """

    def __init__(self, graph: DecoderGraph, prefix: Sequence[int]) -> None:
        self.decoder = OnnxDecoder(graph)
        self.tokens: list[int] = []
        self.held = NOTHING
        self.decoder_s = 0.0
        self._prefix = len(prefix)
        self._first_position = text_start(prefix, graph.config.memory)
        self._with_memory = False
        self._prompt_length = 0
        self.decoder.run(prefix, 0)

    @property
    def full(self) -> bool:
        """Whether not one token more fits."""
        return self.decoder.length >= self.decoder.capacity

    def reusable(self, ids: Sequence[int], *, memory: bool) -> int:
        """How many tokens of the prompt `ids` need not be read again; at least one is read, for its logits.

        What was read with memories is kept only if this prompt goes on from that conversation: another
        question has other memories, and its first tokens read them too. A cache read without memories does
        not serve an answer with memories, nor the other way round.
        """
        same = common_length(self.tokens, ids) if memory == self._with_memory else 0
        if memory and not self._prompt_length <= same < len(ids):
            return 0
        return min(same, len(ids) - 1)

    def begin(self, ids: Sequence[int], *, memory: bool) -> int:
        """Forget what is not part of the prompt `ids`; returns how many of its tokens are kept."""
        same = self.reusable(ids, memory=memory)
        self.tokens = self.tokens[:same]
        self._with_memory, self._prompt_length = memory, len(ids)
        self.decoder.rewind(self._prefix + same)
        if not same or not memory:
            self.inject(NOTHING)
        return same

    def read(self, tokens: Sequence[int]) -> np.ndarray:
        """Read tokens after those that are cached; returns logits float32 [1, vocabulary]."""
        begun = time.perf_counter()
        logits = self.decoder.run(tokens, self._first_position + len(self.tokens))
        self.decoder_s += time.perf_counter() - begun
        self.tokens.extend(tokens)
        return logits

    def inject(self, found: Recall) -> None:
        """Read these memories from the next token on; those that are in the slots already cost nothing."""
        now, then = found.memories, self.held.memories
        if len(now) != len(then) or any(a is not b for a, b in zip(now, then, strict=True)):
            self.decoder.inject(now)
        self.held = found

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Key-values of prefix and text, and the numbers that `restore` needs with them."""
        self.decoder.rewind(self._prefix + len(self.tokens))  # of a run that an exception ended
        return self.decoder.snapshot(), {
            "with_memory": self._with_memory,
            "prompt_length": self._prompt_length,
        }

    def restore(
        self, arrays: Mapping[str, np.ndarray], tokens: Sequence[int], held: Recall, *, with_memory: int,
        prompt_length: int,
    ) -> None:  # fmt: skip
        """Go on from a snapshot of the prefix and `tokens`; raises CorruptFile, ContextFull."""
        self.decoder.restore(arrays, self._prefix + len(tokens))
        self.tokens = list(tokens)
        self._with_memory, self._prompt_length = bool(with_memory), prompt_length
        self.inject(held)
