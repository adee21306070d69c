"""Which rows are alive: a deleted document's rows stay in the files until they are compacted, and are not found."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

_ROOM = 1024


class Living:
    """The living rows of one moment. Never changed, so that a search sees all of a batch or nothing of it."""

    def __init__(self, flags: np.ndarray, dead: int) -> None:
        """flags: bool, at least one for each row, True behind the last row."""
        self._flags = flags
        self.dead = dead

    @classmethod
    def of(cls, rows: int, dead: Iterable[range]) -> Living:
        """All of `rows` rows live but those of `dead`."""
        return cls(np.ones(rows + _ROOM, bool), 0).after(rows, dead)

    def after(self, rows: int, dead: Iterable[range]) -> Living:
        """After a batch that left `rows` rows in all, of which `dead` died."""
        dead = list(dead)
        flags = self._flags
        if rows > len(flags):
            flags = np.ones(2 * rows + _ROOM, bool)
            flags[: len(self._flags)] = self._flags
        elif dead:
            flags = flags.copy()
        for part in dead:
            flags[part.start : part.stop] = False
        died = sum(map(len, dead))
        return Living(flags, self.dead + died) if died or flags is not self._flags else self

    def flags(self, rows: int) -> np.ndarray | None:
        """Flags of the first rows, bool [rows], or None where all are alive."""
        return self._flags[:rows] if self.dead else None

    @cached_property
    def bits(self) -> np.ndarray | None:
        """The flags as FAISS takes them, uint8 [rows / 8], the lowest bit first; None where all are alive."""
        return np.packbits(self._flags, bitorder="little") if self.dead else None
