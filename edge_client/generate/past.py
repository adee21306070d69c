"""`Past`: the memories that a conversation has of its own turns and texts, in a knowledge base of its own."""

from __future__ import annotations

import hashlib
import re
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp

from edge_client.local.database import disk_errors
from edge_client.local.folder import remember
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.records import LocalDocument
from edge_client.local.writer import MemoryWriter, Written
from edge_client.recall.outcome import MemoryRead
from memory3.errors import InvalidInput
from memory3.files.knowledge_file import Head
from memory3.formats import FileDocument
from memory3.text.chat import Message
from memory3.text.references import turn_references

NAME = "conversation"
"""`MemoryRead.knowledge_base` of what is read of it. The title is "turn 3" then, or that of a text."""

TOGETHER = 4
"""Turns that are written together: a few hundred tokens, as a pass over fewer takes nearly as long."""

_TURN = re.compile(r"turn \d+")

Turn = tuple[int, Sequence[Message]]
"""Its number from 1, and its messages."""
Progress = Callable[[int, int], None]
"""Called with the references that are written and with all of them."""


class Past:
    """A local knowledge base, `base`, in a temporary file, which goes with this object. Thread-safe.

    saved: the file's bytes, `base.content()`. Raises StorageError, CorruptFile, and IdentityMismatch for a file
    of another bundle.
    """

    def __init__(self, writer: MemoryWriter, saved: bytes = b"") -> None:
        self._writer, bundle = writer, writer.bundle
        embedder_id = bundle.manifest.embedder_id
        self._ahead: dict[str, tuple[LocalDocument, list[str], Written]] = {}  # by key; not in the base yet
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

    def waiting(self, turns: Sequence[Turn]) -> list[tuple[LocalDocument, list[str]]]:
        """Those of these turns that are not written, neither ahead, with their references."""
        memory, count = self._writer.bundle.config.memory, self._writer.bundle.tokenizer.count
        found: list[tuple[LocalDocument, list[str]]] = []
        for number, messages in turns:
            turn = _document(number, messages)
            if turn.text and self._ahead.get(turn.key, (None,))[0] != turn and not self.base.has(turn):
                texts = [(m["role"], m["content"]) for m in messages if m["content"].strip()]
                found.append((turn, turn_references(texts, count, memory.reference_tokens)))
        return found

    def write_ahead(
        self, turns: Sequence[Turn], *, per_step: float = 1.0, go_on: Callable[[], None] = lambda: None
    ) -> None:
        """Write turns that are not yet, to be read once `remember_turns` is called. go_on: may raise to end it."""
        waiting = self.waiting(turns)
        for start in range(0, len(waiting), TOGETHER):
            go_on()
            piece, first = waiting[start : start + TOGETHER], 0
            found = self._writer.write([text for _, references in piece for text in references], per_step=per_step)
            for turn, references in piece:
                end = first + len(references)
                own = Written(found.payloads[first:end], found.vectors[first:end])
                self._ahead[turn.key] = turn, references, own
                first = end

    def remember_turns(self, turns: Sequence[Turn], per_step: float = 1.0) -> int:
        """Let these turns be read from now on, written now or ahead; returns how many new memories there are.

        What fails leaves the others written.
        """
        added = 0
        try:
            self.write_ahead(turns, per_step=per_step)
        finally:
            for number, messages in turns:
                turn, references, written = self._ahead.pop(turn_key(number), (None, [], None))
                if turn == _document(number, messages) and written is not None:
                    self.base.add(turn, references, written)
                    added += len(references)
        return added

    def remember(self, text: str | Sequence[FileDocument], title: str = "", progress: Progress | None = None) -> int:
        """Write a text of any length, or the documents of a file; see `ChatSession.remember`."""
        documents = [_text_document(text, title)] if isinstance(text, str) else text
        count = 0  # of the documents that are done
        for one in remember(self.base, self._writer, documents):
            if one.outcome == "failed":
                raise InvalidInput(f"the text cannot be remembered: {one.message}")
            if progress is not None:
                progress(count + one.done, count + one.references)
            count += one.references if one.outcome in ("stored", "unchanged") else 0
        return count


def _text_document(text: str, title: str) -> FileDocument:
    key = f"text {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    return FileDocument(key, key, title, text)


def _document(number: int, messages: Sequence[Message]) -> LocalDocument:
    key = turn_key(number)
    return LocalDocument(key, key, "\n".join(f"{m['role']}: {m['content']}" for m in messages if m["content"].strip()))


def is_turn(memory: MemoryRead) -> bool:
    """Whether a memory is of turns of the conversation itself, not of a text that it was given."""
    return memory.knowledge_base == NAME and _TURN.fullmatch(memory.document_key) is not None


def turn_key(number: int) -> str:
    """Key and title of a turn's memories, from 1."""
    return f"turn {number}"
