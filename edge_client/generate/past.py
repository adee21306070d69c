"""`Past`: memories that belong to one conversation, its earlier turns and the texts that it was given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from edge_client.errors import StorageError
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.writer import MemoryWriter
from edge_client.wire.retrieval import Answer
from memory_model.chat import Message
from memory_model.references import turn_references

NAME = "conversation"
"""`MemoryRead.knowledge_base` of what is read of it; the title is then "turn 3", or that of a text."""
BATCH = 8
"""References that are written together, and kept once they are."""


@dataclass(frozen=True)
class Turn:
    """A turn that leaves the cache. number: from 1. messages: a person's, and what the model answered."""

    number: int
    messages: Sequence[Message]


class Past:
    """A knowledge base in a file of its own, temporary until the conversation is saved. Thread-safe.

    saved: the file's bytes, from `saved`. path: where the file shall lie and stay, instead of a temporary folder.
    Raises StorageError, CorruptFile, and IdentityMismatch for one of another bundle.
    """

    def __init__(self, writer: MemoryWriter, saved: bytes = b"", path: Path | None = None) -> None:
        self._writer, self._writing = writer, threading.Lock()
        try:
            self._folder = TemporaryDirectory(prefix="memory3-") if path is None else None
            path = path or Path(self._folder.name, "conversation.sqlite")
            if saved:
                path.write_bytes(saved)
        except OSError as error:
            raise StorageError(
                f"there is no place for the conversation's memories: {error.strerror or error}", reason="DISK_FULL"
            ) from error
        self.path = path
        self._base = LocalKnowledgeBase(path, writer.bundle)

    def __len__(self) -> int:
        """Memories that are written."""
        return len(self._base)

    def remember_turns(self, turns: Sequence[Turn]) -> int:
        """Write those that are not yet; returns the number of new memories. What fails leaves the others written."""
        count, limit = self._writer.bundle.tokenizer.count, self._writer.bundle.config.memory.reference_tokens
        written = 0
        for turn in turns:
            said = [(m["role"], m["content"]) for m in turn.messages if m["content"]]
            written += self._write(f"turn {turn.number}", f"turn {turn.number}", turn_references(said, count, limit))
        return written

    def remember(
        self, text: str, title: str = "", progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Write a text of any length; see `ChatSession.remember`."""
        ...

    def retrieve(self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = ()) -> Answer:
        """As `LocalSource.retrieve`."""
        return self._base.retrieve(vectors, k=k, words=words)
