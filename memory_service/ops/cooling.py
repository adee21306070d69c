"""Drops the memories of references that are seldom read: their text and vector stay, and a read writes them again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from memory_service.ops.reads import reads_by_document
from memory_service.stores.store import KnowledgeBase, NewDocument, NewReference, SnapshotPage, Store
from memory_service.write.document import memory_id_of

_DOCUMENTS_AT_ONCE = 256
_MOST_READ = 1 << 24


@dataclass(frozen=True)
class Cooled:
    """What lost its memories; payload_bytes: theirs."""

    documents: int = 0
    references: int = 0
    payload_bytes: int = 0


def documents_to_keep(store: Store, base: KnowledgeBase, share: float) -> set[str]:
    """Keys of the documents that were read, the most read first, up to a share of all references.

    A document counts by the reads of a reference on average.
    """
    references = store.statistics(base).references
    reads = reads_by_document(store, base, _MOST_READ)
    sizes: dict[str, int] = {}
    keys = list(reads)
    for start in range(0, len(keys), 1000):
        found = store.versions(base, keys[start : start + 1000])
        sizes |= {key: len(version.memory_ids) for key, version in found.items()}
    kept, left = set(), int(share * references)
    for key in sorted(sizes, key=lambda key: (-reads[key] / sizes[key], key)):
        if sizes[key] <= left:
            kept.add(key)
            left -= sizes[key]
    return kept


def cool(store: Store, base: KnowledgeBase, share: float) -> Cooled:
    """Drops the memories of all documents but the most read ones, which keep a share of all references.

    No quota is checked: nothing is added, though what may be written again counts with the longest payload. A document
    that is replaced meanwhile stays as it is. Repeat a call that broke off.
    """
    kept, cooled, batch = documents_to_keep(store, base, share), Cooled(), list[NewDocument]()

    def write() -> None:
        nonlocal cooled
        written = {one.key for one in store.write(base, batch) if one.replaced}
        for one in batch:
            if one.key in written:
                size = payload_bytes[one.key]
                cooled = Cooled(
                    cooled.documents + 1, cooled.references + len(one.references), cooled.payload_bytes + size
                )
        batch.clear()

    payload_bytes: dict[str, int] = {}
    with store.snapshot(base) as snapshot:
        for document, size in _without_memories(snapshot.pages, kept):
            payload_bytes[document.key] = size
            batch.append(document)
            if len(batch) == _DOCUMENTS_AT_ONCE:
                write()
    if batch:
        write()
    return cooled


def _without_memories(pages: Iterator[SnapshotPage], kept: set[str]) -> Iterator[tuple[NewDocument, int]]:
    """The written documents that are not kept, with empty payloads, and the bytes of those that they had."""
    references: list[NewReference] = []
    size = 0
    for page in pages:
        stored = page.document
        if not stored.written or stored.key in kept:
            continue
        for one in page.memories:
            memory_id = memory_id_of(stored.key, stored.content_hash, one.chunk_number, b"")
            references.append(NewReference(memory_id, one.text, one.vector, b"", 0))
            size += len(one.payload)
        if len(references) == stored.reference_count:
            new = NewDocument(stored.key, stored.title, stored.metadata, stored.content_hash, references, written=False)
            yield replace(new, replaces=stored.content_hash, again=True), size
            references, size = [], 0
