"""The tests' encoder as workers of a distributed ingestion load it; importable by Ray's processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memory_service.write.encoder import EncodedReferences
from tests.memory_service.encoders import HashEncoder


class Noted(HashEncoder):
    """Leaves the number of its process in a folder when it is loaded; the first that meets a text dies of it."""

    def __init__(self, folder: Path, deadly: str) -> None:
        super().__init__()
        self._deadly = deadly
        self._died = folder / "died"
        (folder / f"{os.getpid()}.worker").touch()

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        if self._deadly and any(self._deadly in text for text in references) and not self._died.exists():
            self._died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(references)


@dataclass(frozen=True)
class HashModel:
    """Loads the encoder in a worker."""

    folder: Path
    deadly: str = ""
    name: str = "test"

    def __call__(self) -> HashEncoder:
        return Noted(self.folder, self.deadly) if self.name == "test" else HashEncoder(self.name)
