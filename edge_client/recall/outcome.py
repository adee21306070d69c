"""`Recall`: what a chunk reads, where it is from and what that cost, or why there is nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from memory3.codec.payload import ExplicitMemory
from memory3.formats.naming import file_of, page_of, source_of

RecallState = Literal["fetched", "held", "late", "failed", "skipped", "offline"]
"""fetched: the service answered, with at least one new memory or with nothing near. held: all were on this device
already, in its own knowledge bases or kept from earlier answers. late: they came, or will, after their chunk began.
failed: requested in vain. skipped: not requested. offline: from what this device holds."""


@dataclass(frozen=True)
class MemoryRead:
    """One memory that the model reads (or that was refused): where it comes from and how near it was."""

    memory_id: int
    document_key: str
    title: str
    chunk_number: int
    score: float
    text: str | None
    refused: str = ""
    """Why it is not read, e.g. "MODEL_MISMATCH: …"; empty when it is read."""
    held: bool = False
    """Whether it was on the device already, in a knowledge base of its own or kept from an earlier answer."""
    knowledge_base: str = ""
    """Named where several are read."""
    file: str = ""
    """Key of the file that the document is a record of, where it is known; else its key tells."""

    @property
    def page(self) -> int | None:
        """The page of a PDF that it is of, from 1; None for any other document."""
        return page_of(self.document_key)

    @property
    def source(self) -> str:
        """The document for people: its title with the file's name, or `manual.pdf, page 12`."""
        return source_of(self.document_key, self.title, self.file)

    @property
    def name(self) -> str:
        """For people: `Benin #2`, or `atlas: Benin #2` where several knowledge bases are read."""
        base = f"{self.knowledge_base}: " if self.knowledge_base else ""
        return f"{base}{self.source} #{self.chunk_number}"


def named_apart(memories: Iterable[MemoryRead]) -> list[str]:
    """The documents of memories for people, each once.

    Documents of several files that are called alike, such as one of the service and one of this device, are named with
    their knowledge bases, or with their keys where those are the same.
    """
    named: dict[str, dict[tuple[str, str], MemoryRead]] = {}
    for one in memories:
        file = one.knowledge_base, one.file or file_of(one.document_key, {})
        named.setdefault(one.source, {}).setdefault(file, one)
    found = []
    for source, alike in named.items():
        several = len({base for base, _ in alike}) == len(alike)
        for (base, _), one in alike.items():
            name = source if len(alike) == 1 or several else one.document_key
            found.append(f"{base}: {name}" if len(alike) > 1 and base else name)
    return found


@dataclass(frozen=True)
class RecallTimes:
    """Where a chunk's recall spent its time, in milliseconds. Chunks recalled together share the times equally.

    queue: behind the computing of other recalls. call: to the answer, of which the server reports `server_ms`.
    """

    embed_ms: float = 0.0
    call_ms: float = 0.0
    server_ms: float = 0.0
    decompress_ms: float = 0.0
    inject_ms: float = 0.0
    queue_ms: float = 0.0

    def shared(self, chunks: int) -> RecallTimes:
        """One chunk's share of the times of `chunks`."""
        return RecallTimes(**{name: round(ms / chunks, 3) for name, ms in vars(self).items()})


@dataclass(frozen=True)
class Recall:
    """What a chunk reads: memories (at most the model's number), where they are from, or why there are none.

    memories: arrays are read-only. read: one for each hit, refused ones included. error: `REASON: message` of what
    failed for the whole chunk, and `reason` its name alone; empty if nothing did. service_error: why the service was
    not used, when memories came from this device instead. by_text: the service embedded the query, because this device
    would have been too slow.
    """

    query: str
    memories: tuple[ExplicitMemory, ...] = ()
    read: tuple[MemoryRead, ...] = ()
    error: str = ""
    times: RecallTimes = RecallTimes()
    state: RecallState = "fetched"
    service_error: str = ""
    reason: str = ""
    by_text: bool = False


def without(
    queries: Sequence[str], reason: str, message: str, state: RecallState, times: RecallTimes = RecallTimes()
) -> list[Recall]:
    """Recalls that found nothing, and why."""
    return [Recall(q, error=f"{reason}: {message}", times=times, state=state, reason=reason) for q in queries]
