"""`Past`: memories that belong to one conversation: its earlier turns, and the texts that it was given."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from edge_client.local.knowledge_base import LocalKnowledgeBase, disk_errors
from edge_client.local.records import Head, LocalDocument
from edge_client.local.writer import MemoryWriter
from edge_client.wire.retrieval import Answer
from memory_model.chat import Message
from memory_model.errors import InvalidInput
from memory_model.references import turn_references

NAME = "conversation"
"""`MemoryRead.knowledge_base` of what is read of it. The title is "turn 3" then, or that of a text."""
PART = 8
"""References of a text that are written, and from then on kept, together."""

Progress = Callable[[int, int], None]
"""Called with the references that are written and with all of them."""


@dataclass(frozen=True)
class Turn:
    """A turn that leaves the cache. number: from 1. messages: a person's, and what the model answered."""

    number: int
    messages: Sequence[Message]


class Past:
    """A local knowledge base in a temporary file, which goes with this object. Thread-safe.

    saved: the file's bytes as `saved` returned them. Raises StorageError, CorruptFile, and IdentityMismatch for a file
    of another bundle.
    """

    def __init__(self, writer: MemoryWriter, saved: bytes = b"") -> None:
        self._writer, self._writing = writer, threading.Lock()
        bundle = writer.bundle
        identity, embedder_id = bundle.identity, bundle.manifest.embedder_id
        with disk_errors(Path(NAME)):
            folder = mkdtemp(prefix="memory3-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            path = Path(folder, f"{NAME}.sqlite")
            if saved:
                path.write_bytes(saved)
        if saved:
            self._base = LocalKnowledgeBase.open(
                path, identity, embedder_id, remedy="begin a new conversation"
            )
        else:
            head = Head.of(NAME, identity, embedder_id, writer.embedder.dim)
            self._base = LocalKnowledgeBase.create(path, head)

    def __len__(self) -> int:
        """Memories that are written."""
        return len(self._base)

    def remember_turns(self, turns: Sequence[Turn]) -> int:
        """Write those that are not yet; returns the number of new memories. What fails leaves the others written."""
        memory, count = self._writer.bundle.config.memory, self._writer.bundle.tokenizer.count
        written = 0
        for turn in turns:
            said = [(m["role"], m["content"]) for m in turn.messages if m["content"].strip()]
            references = turn_references(said, count, memory.reference_tokens)
            name = f"turn {turn.number}"
            written += self._write(LocalDocument(name, name, "\n".join(references)), references)
        return written

    def remember(self, text: str, title: str = "", progress: Progress | None = None) -> int:
        """Write a text of any length; see `ChatSession.remember`."""
        references = self._writer.split(text, title)
        if not references:
            raise InvalidInput("the text to remember is empty")
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        for start in range(0, len(references), PART):
            part = references[start : start + PART]
            self._write(LocalDocument(f"{key}/{start // PART + 1}", title or "text", "\n".join(part)), part)
            if progress is not None:
                progress(start + len(part), len(references))
        return len(references)

    def retrieve(self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = ()) -> Answer:
        """As `LocalSource.retrieve`."""
        return self._base.retrieve(vectors, k=k, words=words)

    def saved(self) -> bytes:
        """The file, whole."""
        copy = self._base.path.with_suffix(".copy")
        with (
            self._writing, disk_errors(copy), closing(sqlite3.connect(self._base.path)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):  # fmt: skip
            source.backup(target)
        with disk_errors(copy):
            content = copy.read_bytes()
            copy.unlink()
        return content

    def _write(self, document: LocalDocument, references: Sequence[str]) -> int:
        """Write a document unless it is there; returns the number of new memories."""
        with self._writing:
            if not references or self._base.has(document):
                return 0
            self._base.add(document, references, self._writer.write(references))
            return len(references)
