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
        self._last = np.full(LONGEST, -1, np.int64)  # the newest first
        self._run = np.zeros(LONGEST, np.int64)  # for each distance, tokens in a row that equal the one so far before
        self._needed = np.maximum((TIMES - 1) * np.arange(1, LONGEST + 1), LEAST_TOKENS - np.arange(1, LONGEST + 1))

    def add(self, token: int) -> bool:
        """Add a token; True if the answer ends in a passage that was generated `TIMES` times in a row."""
        self._run = np.where(self._last == token, self._run + 1, 0)
        self._last = np.roll(self._last, 1)
        self._last[0] = token
        return bool((self._run >= self._needed).any())
