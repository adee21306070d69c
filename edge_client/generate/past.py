"""`Past`: memories that belong to one conversation: its earlier turns, and the texts that it was given."""

from __future__ import annotations

import hashlib
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp

from edge_client.local.database import disk_errors
from edge_client.local.folder import remember
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.records import Head, LocalDocument
from edge_client.local.writer import MemoryWriter, Written
from memory_model.chat import Message
from memory_model.errors import InvalidInput
from memory_model.formats import FileDocument
from memory_model.references import turn_references

NAME = "conversation"
"""`MemoryRead.knowledge_base` of what is read of it. The title is "turn 3" then, or that of a text."""

PIECE = 16
"""Turns that are written and stored together."""

Progress = Callable[[int, int], None]
"""Called with the references that are written and with all of them."""


class Past:
    """A local knowledge base, `base`, in a temporary file, which goes with this object. Thread-safe.

    saved: the file's bytes as `saved` returned them. Raises StorageError, CorruptFile, and IdentityMismatch for a file
    of another bundle.
    """

    def __init__(self, writer: MemoryWriter, saved: bytes = b"") -> None:
        self._writer, bundle = writer, writer.bundle
        embedder_id = bundle.manifest.embedder_id
        with disk_errors(Path(NAME)):
            folder = mkdtemp(prefix="memory3-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            path = Path(folder, f"{NAME}.sqlite")
            if saved:
                path.write_bytes(saved)
        if saved:
            remedy = "begin a new conversation"
            self.base = LocalKnowledgeBase.open(path, bundle.identity, embedder_id, remedy=remedy)
        else:
            head = Head.of(NAME, bundle.identity, embedder_id, writer.embedder.dim)
            self.base = LocalKnowledgeBase.create(path, head)

    def remember_turns(self, turns: Sequence[tuple[int, Sequence[Message]]]) -> int:
        """Write turns, (number, messages), that are not yet; returns how many new memories there are.

        What fails leaves the others written.
        """
        memory, count = self._writer.bundle.config.memory, self._writer.bundle.tokenizer.count
        waiting: list[tuple[LocalDocument, list[str]]] = []
        for number, messages in turns:
            said = [(m["role"], m["content"]) for m in messages if m["content"].strip()]
            key = turn_key(number)
            turn = LocalDocument(key, key, "\n".join(f"{who}: {what}" for who, what in said))
            if said and not self.base.has(turn):
                waiting.append((turn, turn_references(said, count, memory.reference_tokens)))
        written = 0
        for start in range(0, len(waiting), PIECE):  # a pass over few tokens takes nearly as long as over many
            piece, first = waiting[start : start + PIECE], 0
            found = self._writer.write([text for _, references in piece for text in references])
            for turn, references in piece:
                end = first + len(references)
                self.base.add(turn, references, Written(found.payloads[first:end], found.vectors[first:end]))
                first = end
            written += first
        return written

    def remember(self, text: str, title: str = "", progress: Progress | None = None) -> int:
        """Write a text of any length; see `ChatSession.remember`."""
        key = f"text {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
        for one in remember(self.base, self._writer, [FileDocument(key, key, title, text)]):
            if one.outcome == "failed":
                raise InvalidInput(f"the text cannot be remembered: {one.message}")
            if progress is not None:
                progress(one.done, one.references)
        return one.references

    def saved(self) -> bytes:
        """The file, whole."""
        return self.base.content()


def turn_key(number: int) -> str:
    """Key and title of a turn's memories, from 1."""
    return f"turn {number}"
