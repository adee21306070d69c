"""The interface of a store, the values that go in and out, and the errors that all stores share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np

from memory3.errors import CodecMismatch, EmbedderMismatch, FormatMismatch, IdentityMismatch, ModelMismatch, shortened
from memory_service.errors import (
    DocumentNotFound,
    KnowledgeBaseDamaged,
    KnowledgeBaseExists,
    KnowledgeBaseNotFound,
    StoreUnavailable,
)
from memory_service.stores.filters import Filter

SNAPSHOT_PAGE_BYTES = 4 << 20
"""Of memories that a snapshot reads at once: some hundred of the default model's 40 kB; a larger one is read alone."""

ALL_REFERENCES = 1 << 31
"""More than a document has."""

# Who wrote the memories of a knowledge base: the ids that must agree before anything is read or added.
_MISMATCHES: tuple[tuple[str, type[IdentityMismatch]], ...] = (
    ("model_id", ModelMismatch),
    ("memory_format_id", FormatMismatch),
    ("codec_id", CodecMismatch),
    ("embedder_id", EmbedderMismatch),
)


@dataclass(frozen=True)
class WriterIdentity:
    """Ids (hexadecimal SHA-256) of what turns text into a vector and a payload; `dimension` is the vector's length."""

    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    dimension: int


def require_same(found: WriterIdentity, reader: WriterIdentity, remedy: str) -> None:
    """Raises the mismatch of the first id in which `reader` differs from what was `found` in a knowledge base.

    Embedders whose vectors have another length too are an EmbedderMismatch that says both lengths.
    """
    if found == reader:
        return
    if found.dimension != reader.dimension:
        remedy = f"its vectors have {found.dimension} numbers, this embedder's {reader.dimension}; {remedy}"
    for name, mismatch in _MISMATCHES:
        theirs, ours = getattr(found, name), getattr(reader, name)
        if theirs != ours:
            raise mismatch(theirs, ours, remedy)
    raise EmbedderMismatch(found.embedder_id, reader.embedder_id, remedy)


def require_readable(found: WriterIdentity, dimension: int = 0, /, **ids: str) -> None:
    """As require_same for the ids a client sent, by name; an empty one is not checked. dimension: of its vectors."""
    reader = replace(found, **{name: sent for name, sent in ids.items() if sent})  # type: ignore[arg-type]
    if reader != found:
        reader = replace(reader, dimension=dimension or found.dimension)
        require_same(found, reader, "load the bundle that this service offers, or ask a knowledge base of your model")


@dataclass(frozen=True)
class KnowledgeBase:
    """A knowledge base as it was created. `problem`: why it cannot be used, empty when it can.

    damaged: what is stored is not what was written; with a problem and undamaged it is unavailable for the moment.
    """

    number: int
    name: str
    description: str
    identity: WriterIdentity
    created_at: datetime
    problem: str = ""
    damaged: bool = False


@dataclass(frozen=True)
class NewReference:
    """One reference ready to be stored. vector: float32 [dimension]; crc32c: CRC-32C of the payload.

    The payload is empty, for all references of a document, where its memories are written later.
    """

    memory_id: int
    text: str
    vector: np.ndarray
    payload: bytes
    crc32c: int


@dataclass(frozen=True)
class NewDocument:
    """One document ready to be stored, with at least one reference; a `write.document.PendingDocument` becomes it.

    written: its memories are; else all payloads are empty, and a written document with the same content replaces it.
    replaces: stored only if the stored version has this content hash, otherwise unchanged. None: whatever is stored.
    again: replaces a stored version of the same content, whose memories are dropped or written by another model.
    """

    key: str
    title: str
    metadata: Mapping[str, str]
    content_hash: bytes
    references: Sequence[NewReference]
    written: bool = True
    replaces: bytes | None = None
    again: bool = False

    def changes(self, stored_hash: bytes | None, written: bool) -> bool:
        """Whether it is to be stored over the version with this content hash; None for no version.

        written: whether that one's memories are.
        """
        if self.again:
            return self.content_hash == stored_hash
        same = self.content_hash == stored_hash and (written or not self.written)
        return not same and self.replaces in (None, stored_hash)


@dataclass(frozen=True)
class Written:
    """Outcome of a document. `replaced`: an older version existed; `unchanged`: it was stored already."""

    key: str
    reference_count: int
    replaced: bool = False
    unchanged: bool = False


@dataclass(frozen=True)
class StoredVersion:
    """The version of a document that the store holds. written: whether its memories are.

    size_bytes: of its texts and payloads.
    """

    content_hash: bytes
    memory_ids: tuple[int, ...]
    written: bool
    size_bytes: int = 0


@dataclass(frozen=True)
class StoredDocument:
    """A document as stored. written: whether its memories are.

    references: (memory id, text) in order, those that were asked for; reference_count: of all.
    """

    key: str
    title: str
    metadata: Mapping[str, str]
    content_hash: bytes
    stored_at: datetime
    references: Sequence[tuple[int, str]]
    reference_count: int
    written: bool


class Found(NamedTuple):
    """A reference near a query.

    score: cosine similarity; rank_score: what the hits are ordered by, of vector and words where the query has words,
    else `score`; metadata: the document's, if the query requests it.
    """

    memory_id: int
    score: float
    document_key: str
    title: str
    chunk_number: int
    crc32c: int
    text: str | None
    rank_score: float = 0.0
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Query:
    """What to search. vectors: float32 [queries, dimension], finite, none zero.

    words: hashes of each query's words (`memory3.text.words`), or empty; with them the `candidates` nearest by
    vector are ordered by vector and words, and the first k are the hits, less those that score lower than the
    best by more than `maximum_drop`, or lower than `minimum_score`.
    """

    vectors: np.ndarray
    k: int
    held_ids: frozenset[int] = frozenset()
    minimum_score: float | None = None
    filter: Filter | None = None
    return_text: bool = False
    return_metadata: bool = False
    words: Sequence[Sequence[int]] = ()
    candidates: int = 50
    maximum_drop: float | None = None


@dataclass(frozen=True)
class Retrieved:
    """Hits of every query, best first, and the payloads of those not held; times in microseconds."""

    hits: list[list[Found]]
    payloads: Mapping[int, bytes | memoryview]
    search_us: int
    fetch_us: int
    rank_us: int = 0


@dataclass(frozen=True)
class Statistics:
    """What a knowledge base holds; stored_bytes is on disk, with index and vectors.

    unwritten_documents, unwritten_references: those whose memories are still to be written. reindexed, unindexed:
    references that a search index which is being built anew has and lacks; 0 while none is.
    """

    documents: int
    references: int
    payload_bytes: int
    text_bytes: int
    stored_bytes: int
    unwritten_documents: int = 0
    unwritten_references: int = 0
    reindexed: int = 0
    unindexed: int = 0


class ReadReference(NamedTuple):
    """A reference and how often retrievals found it."""

    document_key: str
    chunk_number: int
    reads: int


@dataclass(frozen=True)
class UsageGroup:
    """References of one form and as many reads. written: whether their memories are; level: of the reads' bounds.

    payload_bytes, text_bytes: a reference has its document's mean.
    """

    written: bool
    level: int
    references: int
    reads: int
    payload_bytes: int
    text_bytes: int


@dataclass(frozen=True)
class Revision:
    """State of a knowledge base: a number that every batch changes, its memories, and the XOR of their ids."""

    number: int = 0
    memories: int = 0
    digest: int = 0


@dataclass(frozen=True)
class StoredMemory:
    """A reference with its memory, as stored. vector: float32 [dimension]."""

    memory_id: int
    document_key: str
    title: str
    chunk_number: int
    text: str
    vector: np.ndarray
    payload: bytes | memoryview
    crc32c: int


class SnapshotPage(NamedTuple):
    """Memories of one document, in order. document: without its references."""

    document: StoredDocument
    memories: Sequence[StoredMemory]


@dataclass(frozen=True)
class Snapshot:
    """A knowledge base as it was at one moment. documents: how many.

    pages: every document in the order of the keys' bytes, a long one on several pages of SNAPSHOT_PAGE_BYTES.
    """

    revision: Revision
    documents: int
    pages: Iterator[SnapshotPage]


class Store(ABC):
    """Keeps knowledge bases apart from each other and their documents whole.

    Threads: every method may be called from any thread; writes of one store follow one another.
    Atomicity: `write` and `delete` happen for all their documents or for none, also across kill -9; what they
    report done is durable and searchable.
    Isolation: no method reads or changes another knowledge base than its argument.
    Damage: a knowledge base whose rows are not those that were written is refused by KnowledgeBaseDamaged, the
    others go on. One that the machine does not let open (a full disk, missing rights, no more descriptors) is refused
    by StoreUnavailable, and opened as soon as it can be. Every method may raise StoreUnavailable; writing ones
    StoreFull.
    """

    @abstractmethod
    def knowledge_bases(self) -> list[KnowledgeBase]:
        """All knowledge bases by name, damaged ones too."""

    @abstractmethod
    def knowledge_base(self, name: str) -> KnowledgeBase:
        """The one of this name; raises KnowledgeBaseNotFound."""

    @abstractmethod
    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        """A new, empty one; raises KnowledgeBaseExists."""

    @abstractmethod
    def adopt(self, base: KnowledgeBase, identity: WriterIdentity) -> KnowledgeBase:
        """Records another writer, of the same embedder, once all memories are its; raises KnowledgeBaseNotFound."""

    @abstractmethod
    def drop(self, base: KnowledgeBase) -> None:
        """Removes it with everything in it, damaged or not."""

    @abstractmethod
    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        """The nearest references of every query vector, with their payloads."""

    @abstractmethod
    def versions(self, base: KnowledgeBase, keys: Sequence[str]) -> dict[str, StoredVersion]:
        """What is stored of these documents; absent keys are left out."""

    @abstractmethod
    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        """Stores documents of different keys; an older document of the same key goes once the new one is durable."""

    @abstractmethod
    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        """Removes documents; returns how many documents and references there were."""

    @abstractmethod
    def document(self, base: KnowledgeBase, key: str, *, first: int = 0, count: int = ALL_REFERENCES) -> StoredDocument:
        """One document with its references from chunk `first` on, at most `count`; raises DocumentNotFound."""

    @abstractmethod
    def revision(self, base: KnowledgeBase) -> Revision:
        """After its newest finished batch."""

    @abstractmethod
    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        """At most `count` memories with the smallest ids above `after_id`, in ascending order.

        Whoever reads page after page compares the revision before and after: a batch may be written in between.
        """

    @abstractmethod
    def snapshot(self, base: KnowledgeBase, *, first_only: bool = False) -> AbstractContextManager[Snapshot]:
        """The knowledge base as it is when the block is entered, whatever is written meanwhile.

        first_only: its pages have the first memory of every document and no other is read.
        A document that is not written has memories with empty payloads. One thread at a time may read the pages.
        """

    @abstractmethod
    def keys(
        self, base: KnowledgeBase, prefix: str, *, after_key: str | None, count: int, filter: Filter | None = None
    ) -> list[str]:
        """At most `count` keys of documents that begin with `prefix`, in the order of their bytes, after one.

        filter: of the documents' metadata.
        """

    @abstractmethod
    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        """Keys of at most `count` documents whose memories are still to be written, the most read first."""

    @abstractmethod
    def add_reads(self, base: KnowledgeBase, reads: Mapping[tuple[str, int], int]) -> None:
        """Adds to the reads of references, which are named by document key and chunk number."""

    @abstractmethod
    def most_read(self, base: KnowledgeBase, count: int) -> list[ReadReference]:
        """At most `count` references that were read, the most read first."""

    @abstractmethod
    def usage(self, base: KnowledgeBase, bounds: Sequence[int]) -> list[UsageGroup]:
        """All references by form and reads: a group's level is how many of the bounds its references' reads reach."""

    @abstractmethod
    def statistics(self, base: KnowledgeBase) -> Statistics:
        """Counts and bytes."""

    def ping(self) -> None:
        """Returns when the store answers; raises StoreUnavailable. Stores on another machine ask it."""
        self.knowledge_bases()

    @abstractmethod
    def close(self) -> None:
        """Finishes the write under way and lets go of the files; the store is useless afterwards."""


def damage_text(problems: Sequence[str]) -> str:
    """Damage as the one text that refuses a knowledge base; empty for none."""
    remedy = "check its disk, then restore a backup under another name"
    return f"{'; '.join(problems)}: {remedy}" if problems else ""


def require_sound(base: KnowledgeBase) -> None:
    """Raises KnowledgeBaseDamaged, or StoreUnavailable for one that cannot be opened at the moment."""
    if base.problem and not base.damaged:
        message = f"knowledge base {base.name!r} is unavailable: {base.problem}"
        raise StoreUnavailable(message, knowledge_base=base.name)
    if base.problem:
        message = f"knowledge base {base.name!r} is damaged: {base.problem}"
        raise KnowledgeBaseDamaged(message, knowledge_base=base.name)


def usage_groups(read: Iterable[Sequence[float]], every: Iterable[Sequence[float]]) -> list[UsageGroup]:
    """Groups of the references that were read, and of the others: all references of a form less those.

    A row is written, level, references, reads, payload bytes, text bytes.
    """
    sums: dict[tuple[bool, int], np.ndarray] = {}
    for sign, rows in ((1, every), (-1, read := list(read)), (1, read)):
        for written, level, *counts in rows:
            key = bool(written), 0 if sign < 0 else int(level)
            change = sign * np.array(counts, np.float64)
            if sign < 0:
                change[1] = 0  # those that are not read have no reads to lose
            sums[key] = sums.get(key, 0) + change
    return [UsageGroup(*key, *(round(one) for one in counts)) for key, counts in sorted(sums.items()) if counts[0] >= 1]


def digest(memory_ids: Sequence[int] | np.ndarray) -> int:
    """XOR of ids: equal sets have equal digests, whatever the order; adding and removing are the same."""
    return int(np.bitwise_xor.reduce(np.asarray(memory_ids, np.uint64))) if len(memory_ids) else 0


def name_taken(name: str) -> KnowledgeBaseExists:
    """The error for a name that another one has."""
    message = f"a knowledge base called {name!r} is there already"
    return KnowledgeBaseExists(message, knowledge_base=name)


MOST_NAMED = 20
"""Knowledge bases that an error lists."""


def unknown_knowledge_base(name: str, known: Sequence[str]) -> KnowledgeBaseNotFound:
    """The error for a name that none has."""
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    there = ", ".join(sorted(known)[:MOST_NAMED]) or "none"
    message = f"no knowledge base is called {shortened(name, 80)!r}; there are: {there}{more}"
    return KnowledgeBaseNotFound(message, knowledge_base=name)


def deleted_meanwhile(base: KnowledgeBase) -> KnowledgeBaseNotFound:
    """The error for a knowledge base that was dropped since it was looked up."""
    message = f"knowledge base {base.name!r} was deleted meanwhile"
    return KnowledgeBaseNotFound(message, knowledge_base=base.name)


def unknown_document(base: KnowledgeBase, key: str) -> DocumentNotFound:
    """The error for a key that no document of the knowledge base has."""
    message = f"knowledge base {base.name!r} has no document {shortened(key)!r}"
    return DocumentNotFound(message, document_key=key)
