"""The passages of a prepared corpus as a sequence that is read from its files as needed.

Only the place of each line is held in memory: 10 bytes a passage, whatever its length. Sources draw passages
at random by number, so the state of their random generator is all that an exact resume needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from memory_model.data.corpus.passages import Passage, held_out
from memory_model.errors import CorruptFile, InvalidInput


class PassageFiles(Sequence[Passage]):
    """The passages that training may see, file by file in their order.

    without: titles whose passages are left out beside those that are held out. Raises CorruptFile with the
    line's number, and InvalidInput where nothing is left. Safe to use after a fork.
    """

    def __init__(self, files: Sequence[Path], without: Collection[str] = ()) -> None:
        starts: list[np.ndarray] = []
        for path in files:
            kept = np.array(_starts(path, without), np.int64)
            starts.append(kept)
        self.files = list(files)
        self._file = np.repeat(np.arange(len(files), dtype=np.int16), [len(s) for s in starts])
        self._start = np.concatenate(starts) if starts else np.zeros(0, np.int64)
        if not len(self._start):
            raise InvalidInput("the corpus has no passage to train on: docs/data.md says what it is")
        self._handles = [os.open(path, os.O_RDONLY) for path in files]

    def __len__(self) -> int:
        return len(self._start)

    @overload
    def __getitem__(self, number: int) -> Passage: ...
    @overload
    def __getitem__(self, number: slice) -> list[Passage]: ...
    def __getitem__(self, number: int | slice) -> Passage | list[Passage]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        handle, start = self._handles[self._file[number]], int(self._start[number])
        line = b""
        while b"\n" not in line and (more := os.pread(handle, 8192, start + len(line))):
            line += more
        return Passage(**json.loads(line.partition(b"\n")[0]))

    def __del__(self) -> None:
        for handle in getattr(self, "_handles", ()):
            os.close(handle)


def _starts(path: Path, without: Collection[str]) -> list[int]:
    kept, start = [], 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                passage = Passage(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise CorruptFile(f"{path}, line {number} is no passage: {error}") from error
            if not held_out(passage.source, passage.key) and passage.title not in without:
                kept.append(start)
            start += len(line)
    return kept
