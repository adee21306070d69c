"""A store whose payloads are all of the service's model: those of an earlier model are translated when they are read.

A knowledge base of an earlier model looks like one of ours. Its record keeps the earlier model until all its memories
are written again (`ops.rewriting`), so that another process, or a restart, knows that there are some left.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import google_crc32c

from memory_service.encoder import Encoder
from memory_service.errors import KnowledgeBaseNotFound
from memory_service.stores.filters import Filter
from memory_service.stores.store import (
    ALL_REFERENCES,
    KnowledgeBase,
    NewDocument,
    Query,
    ReadReference,
    Retrieved,
    Revision,
    Snapshot,
    SnapshotPage,
    Statistics,
    Store,
    StoredDocument,
    StoredMemory,
    StoredVersion,
    UsageGroup,
    WriterIdentity,
    Written,
    deleted_meanwhile,
)

_KEPT = 1024
"""Translated payloads, some 40 MB."""


class TranslatingStore(Store):
    """See Store. Raises a mismatch where a payload is of a model without translation."""

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self.stored = store
        self._encoder = encoder
        self._translated: OrderedDict[int, bytes | memoryview] = OrderedDict()  # by memory id, which names the bytes
        self._lock = threading.Lock()
        self._ours: set[int] = set()

    def earlier(self, base: KnowledgeBase) -> bool:
        """Whether the store records an earlier model of this knowledge base. Once it is ours, it stays so.

        Raises KnowledgeBaseNotFound for one that was dropped.
        """
        known = self._encoder.description.earlier
        if not known or base.number in self._ours:
            return False
        try:
            found = self.stored.knowledge_base(base.name)
        except KnowledgeBaseNotFound:  # which names those that there are, of all tenants
            raise deleted_meanwhile(base) from None
        if found.identity in known:
            return True
        if not found.problem:  # the model of one that cannot be opened is not known yet
            self._ours.add(base.number)
        return False

    # Translated

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        if not query.held_ids or not self.earlier(base):
            return self._own_hits(self.stored.retrieve(base, query))
        # A held memory is named by the checksum of its translation, which only its payload tells.
        found = self._own_hits(self.stored.retrieve(base, replace(query, held_ids=frozenset())))
        payloads = {memory_id: one for memory_id, one in found.payloads.items() if memory_id not in query.held_ids}
        return replace(found, payloads=payloads)

    def _own_hits(self, found: Retrieved) -> Retrieved:
        payloads = {memory_id: self._kept(memory_id, one) for memory_id, one in found.payloads.items()}
        changed = {
            memory_id: google_crc32c.value(bytes(payload))
            for memory_id, payload in payloads.items()
            if payload is not found.payloads[memory_id]
        }
        if not changed:
            return found
        hits = [[hit._replace(crc32c=changed.get(hit.memory_id, hit.crc32c)) for hit in hits] for hits in found.hits]
        return replace(found, hits=hits, payloads=payloads)

    def _kept(self, memory_id: int, payload: bytes | memoryview) -> bytes | memoryview:
        """The payload as ours; the last translations are kept, because the same memories are read again and again."""
        if not payload:
            return payload
        with self._lock:
            if (known := self._translated.get(memory_id)) is not None:
                self._translated.move_to_end(memory_id)
                return known
        own = self._encoder.own(payload)
        if own is not payload:
            with self._lock:
                self._translated[memory_id] = own
                if len(self._translated) > _KEPT:
                    self._translated.popitem(last=False)
        return own

    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        return [self._own(one) for one in self.stored.memories(base, after_id=after_id, count=count)]

    @contextlib.contextmanager
    def snapshot(self, base: KnowledgeBase, *, first_only: bool = False) -> Iterator[Snapshot]:
        def own(pages: Iterator[SnapshotPage]) -> Iterator[SnapshotPage]:
            for page in pages:
                yield page._replace(memories=[self._own(one) for one in page.memories])

        with self.stored.snapshot(base, first_only=first_only) as snapshot:
            yield replace(snapshot, pages=own(snapshot.pages))

    def _own(self, memory: StoredMemory) -> StoredMemory:
        payload = self._encoder.own(memory.payload) if memory.payload else memory.payload
        if payload is memory.payload:
            return memory
        return replace(memory, payload=payload, crc32c=google_crc32c.value(bytes(payload)))

    def _seen(self, base: KnowledgeBase) -> KnowledgeBase:
        description = self._encoder.description
        return replace(base, identity=description.identity) if base.identity in description.earlier else base

    def knowledge_bases(self) -> list[KnowledgeBase]:
        return [self._seen(base) for base in self.stored.knowledge_bases()]

    def knowledge_base(self, name: str) -> KnowledgeBase:
        return self._seen(self.stored.knowledge_base(name))

    # As stored

    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        return self.stored.create(name, description, identity)

    def adopt(self, base: KnowledgeBase, identity: WriterIdentity) -> KnowledgeBase:
        return self.stored.adopt(base, identity)

    def drop(self, base: KnowledgeBase) -> None:
        self.stored.drop(base)

    def versions(self, base: KnowledgeBase, keys: Sequence[str]) -> dict[str, StoredVersion]:
        return self.stored.versions(base, keys)

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        return self.stored.write(base, documents)

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        return self.stored.delete(base, keys)

    def document(self, base: KnowledgeBase, key: str, *, first: int = 0, count: int = ALL_REFERENCES) -> StoredDocument:
        return self.stored.document(base, key, first=first, count=count)

    def revision(self, base: KnowledgeBase) -> Revision:
        return self.stored.revision(base)

    def keys(
        self, base: KnowledgeBase, prefix: str, *, after_key: str | None, count: int, filter: Filter | None = None
    ) -> list[str]:
        return self.stored.keys(base, prefix, after_key=after_key, count=count, filter=filter)

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        return self.stored.unwritten(base, count)

    def add_reads(self, base: KnowledgeBase, reads: Mapping[tuple[str, int], int]) -> None:
        self.stored.add_reads(base, reads)

    def most_read(self, base: KnowledgeBase, count: int) -> list[ReadReference]:
        return self.stored.most_read(base, count)

    def usage(self, base: KnowledgeBase, bounds: Sequence[int]) -> list[UsageGroup]:
        return self.stored.usage(base, bounds)

    def statistics(self, base: KnowledgeBase) -> Statistics:
        return self.stored.statistics(base)

    def ping(self) -> None:
        self.stored.ping()

    def close(self) -> None:
        self.stored.close()
