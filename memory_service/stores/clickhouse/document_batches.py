"""Documents into a ClickHouse engine and out of it again: every call one batch that happens whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from memory_service.errors import KnowledgeBaseNotFound
from memory_service.stores import KnowledgeBase, NewDocument, Written
from memory_service.stores.clickhouse.batches import BatchLog
from memory_service.stores.clickhouse.contents import Contents
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.clickhouse.registry import Registry
from memory_service.stores.clickhouse.rows import deleted_columns, document_columns, reference_columns
from memory_service.stores.clickhouse.visibility import Visibility


class DocumentBatches:
    """Writes for the store, which lets one thread of one process in at a time.

    log: of these batches. masked: see Finder; knowledge bases from which rows were removed are added to it.
    """

    def __init__(
        self, engine: Engine, registry: Registry, contents: Contents, visibility: Visibility, masked: set[int]
    ) -> None:
        """Reads the log; raises StoreUnavailable where the engine does not answer."""
        self._engine = engine
        self._registry = registry
        self._contents = contents
        self._masked = masked
        self.log = BatchLog(engine, self._remove, visibility)

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store."""
        self._require_living(base)
        stored = self._contents.versions(base, [document.key for document in documents])
        fresh = [d for d in documents if d.key not in stored or stored[d.key].content_hash != d.content_hash]
        if fresh:
            replaced = [stored[document.key] for document in fresh if document.key in stored]
            self.log.run(
                base.number,
                added=[reference.memory_id for document in fresh for reference in document.references],
                removed=[memory_id for version in replaced for memory_id in version.memory_ids],
                documents_change=len(fresh) - len(replaced),
                insert=lambda: self._insert_references(base, fresh),
                commit=lambda batch: self._engine.insert(
                    "documents", document_columns(base.number, fresh, batch)
                ),
            )
        new = {document.key for document in fresh}
        return [
            Written(
                d.key,
                len(d.references),
                replaced=d.key in stored and d.key in new,
                unchanged=d.key not in new,
            )
            for d in documents
        ]

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        self._require_living(base)
        stored = self._contents.versions(base, keys)
        gone = [memory_id for version in stored.values() for memory_id in version.memory_ids]
        if stored:
            self.log.run(
                base.number,
                added=[],
                removed=gone,
                documents_change=-len(stored),
                insert=lambda: None,
                commit=lambda batch: self._engine.insert(
                    "documents", deleted_columns(base.number, list(stored), batch)
                ),
            )
        return len(stored), len(gone)

    def _require_living(self, base: KnowledgeBase) -> None:
        """A stream may outlive its knowledge base; what it still writes must not stay behind as nobody's."""
        if self._registry.numbered(base.number) is None:
            message = f"knowledge base {base.name!r} was deleted meanwhile"
            raise KnowledgeBaseNotFound(message, knowledge_base=base.name)

    def _insert_references(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> None:
        for payloads, references in reference_columns(base.number, documents):
            self._engine.insert("payloads", payloads)  # first: a reference that can be found has its memory
            self._engine.insert(f"references_{base.identity.dimension}", references)

    def _remove(self, kb: int, memory_ids: Sequence[int]) -> None:
        """Removes references and payloads; ids that are not there are no error."""
        base = self._registry.numbered(kb)
        assert base is not None, "batches are of living knowledge bases"
        self._masked.add(kb)
        for table in (f"references_{base.identity.dimension}", "payloads"):
            self._engine.delete(table, kb, memory_ids)
