"""`Repetition`: whether an answer has begun to say the same again and again."""

from __future__ import annotations

import numpy as np

LONGEST = 64
"""Tokens of what is repeated, at most: some three sentences."""
TIMES = 4
LEAST_TOKENS = 96
"""Of all the repetitions together: lists, tables and ruled lines repeat little."""


class Repetition:
    """Follows the tokens of one answer. Greedy decoding of a small model that repeats itself never leaves the loop."""

    def __init__(self) -> None:
        self._tokens = np.full(64 * LONGEST, -1, np.int64)  # the newest last, at `_end`
        self._end = LONGEST
        distance = np.arange(LONGEST, 0, -1)
        self._run = np.zeros(LONGEST, np.int64)  # for each distance, tokens in a row that equal the one so far before
        self._needed = np.maximum((TIMES - 1) * distance, LEAST_TOKENS - distance)

    def add(self, token: int) -> bool:
        """Add a token; True if the answer ends in a passage that was generated `TIMES` times in a row."""
        if self._end == len(self._tokens):
            self._tokens[:LONGEST] = self._tokens[-LONGEST:]
            self._end = LONGEST
        self._run += 1
        self._run *= self._tokens[self._end - LONGEST : self._end] == token
        self._tokens[self._end] = token
        self._end += 1
        return bool((self._run >= self._needed).any())
