"""All memories of a knowledge base, page by page in the order of their ids, as of one revision."""

from __future__ import annotations

import numpy as np

from memory_service.errors import KnowledgeBaseChanged, MemoriesUnwritten
from memory_service.stores import KnowledgeBase, Revision, Store, StoredMemory
from protos.memory.v1 import knowledge_bases_pb2 as pb

_PAGE_BYTES = 1 << 20
_PAGE_MEMORIES = 256


class Export:
    """One stream of one export. `head` first, then `page` until it is None; each in a reader's thread."""

    def __init__(
        self, store: Store, base: KnowledgeBase, after_id: int | None, revision: int, limit: int,
        while_written: bool = False,
    ) -> None:  # fmt: skip
        """after_id: where an earlier stream stopped. revision: of that stream, 0 for none. limit: 0 for none."""
        self._while_written = while_written
        self._store, self._base = store, base
        self._after_id = after_id
        self._wanted = revision
        self._left = limit or None
        self._revision = Revision()
        self._page_memories = 1

    def head(self) -> pb.ExportHead:
        """What there is to export, but for the knowledge base's own message.

        Raises KnowledgeBaseChanged, and MemoriesUnwritten before a cold start is over.
        """
        self._revision = self._store.revision(self._base)
        if self._wanted and self._revision.number != self._wanted:
            raise self._changed()
        counts = self._store.statistics(self._base)
        if counts.unwritten_documents:
            raise MemoriesUnwritten(
                f"knowledge base {self._base.name!r} has {counts.unwritten_documents} documents whose memories are"
                " still to be written: try again when `memory-service kb show` counts none",
                knowledge_base=self._base.name, documents=counts.unwritten_documents,
            )  # fmt: skip
        per_memory = (counts.payload_bytes + counts.text_bytes) // max(counts.references, 1)
        per_memory += 4 * self._base.identity.dimension
        self._page_memories = min(max(_PAGE_BYTES // max(per_memory, 1), 1), _PAGE_MEMORIES)
        return pb.ExportHead(
            revision=self._revision.number, memory_count=self._revision.memories,
            id_digest=self._revision.digest, payload_bytes=counts.payload_bytes, text_bytes=counts.text_bytes,
        )  # fmt: skip

    def page(self) -> pb.ExportPage | None:
        """The next memories; None at the end. Raises KnowledgeBaseChanged when it was written to meanwhile."""
        count = self._page_memories if self._left is None else min(self._page_memories, self._left)
        if count == 0:
            return None
        memories = self._store.memories(self._base, after_id=self._after_id, count=count)
        if not self._while_written and self._store.revision(self._base) != self._revision:
            raise self._changed()
        if not memories:
            return None
        self._after_id = memories[-1].memory_id
        if self._left is not None:
            self._left -= len(memories)
        return pb.ExportPage(memories=[_message(memory) for memory in memories])

    def _changed(self) -> KnowledgeBaseChanged:
        return KnowledgeBaseChanged(
            f"knowledge base {self._base.name!r} was written to since its export began: start anew",
            knowledge_base=self._base.name,
        )


def _message(memory: StoredMemory) -> pb.ExportedMemory:
    return pb.ExportedMemory(
        memory_id=memory.memory_id, document_key=memory.document_key, title=memory.title,
        chunk_number=memory.chunk_number, text=memory.text,
        vector=np.ascontiguousarray(memory.vector, "<f4").tobytes(),
        payload=bytes(memory.payload), payload_crc32c=memory.crc32c,
    )  # fmt: skip
