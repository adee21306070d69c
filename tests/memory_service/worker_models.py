"""The tests' encoder as workers of a distributed ingestion load it; importable by Ray's processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory_service.encoder import EncodedReferences
from tests.memory_service.encoders import HashEncoder


class Noted(HashEncoder):
    """Takes its time, and leaves the number of its process in a folder when it is loaded."""

    def __init__(self, folder: Path, seconds_per_reference: float) -> None:
        super().__init__()
        self._seconds = seconds_per_reference
        (folder / f"{os.getpid()}.worker").touch()

    def encode(self, references: Sequence[str], contexts: Sequence[str] = ()) -> EncodedReferences:
        time.sleep(self._seconds * len(references))
        return super().encode(references, contexts)


@dataclass(frozen=True)
class HashModel:
    """A ModelOfWorker."""

    folder: Path
    seconds_per_reference: float = 0.0
    name: str = "test"

    def splitter(self, reference_tokens: int) -> Callable[[str, str, int], list[str]]:
        return HashEncoder().split

    def encoder(self) -> HashEncoder:
        return (
            Noted(self.folder, self.seconds_per_reference) if self.name == "test" else HashEncoder(self.name)
        )
