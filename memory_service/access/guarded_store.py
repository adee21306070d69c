"""The store as the service uses it: writing asks quota and disk first; everything else goes straight through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memory_service.access.authorization import tenant_of
from memory_service.access.quotas import Holdings, Quota, Use
from memory_service.errors import DiskWatermarkReached
from memory_service.ops.disk_watermark import DiskWatermark
from memory_service.ops.metrics import REFUSED
from memory_service.ops.tracing import Tracing
from memory_service.stores import KnowledgeBase, NewDocument, Query, Retrieved, Store, Written

if TYPE_CHECKING:
    from collections.abc import Callable


class GuardedStore:
    """A `Store` but for its class: what is not here is the inner store's. Thread-safe as that is."""

    def __init__(
        self, inner: Store, disk: DiskWatermark, quota_of: Callable[[str], Quota], tracing: Tracing
    ) -> None:
        self._inner = inner
        self._tracing = tracing
        self.disk = disk
        self._holdings = Holdings(quota_of, self._count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        """See Store."""
        with self._tracing.span("store.retrieve", knowledge_base=base.name, queries=len(query.vectors)):
            return self._inner.retrieve(base, query)

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store; raises DiskWatermarkReached, QuotaExceeded before anything is written."""
        self._require_room()
        tenant = tenant_of(base.name)
        more = Use(
            sum(len(document.references) for document in documents),
            sum(_size(document) for document in documents),
        )
        self._holdings.admit(tenant, more, lambda: self._replaced(base, documents))
        with self._tracing.span("store.write", knowledge_base=base.name, references=more.references):
            written = self._inner.write(base, documents)
        self._holdings.written(tenant, more)
        return written

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        """See Store; permitted on a full disk, which it helps to empty."""
        with self._tracing.span("store.delete", knowledge_base=base.name, documents=len(keys)):
            deleted = self._inner.delete(base, keys)
        self._holdings.forget(tenant_of(base.name))
        return deleted

    def drop(self, base: KnowledgeBase) -> None:
        """See Store."""
        self._inner.drop(base)
        self._holdings.forget(tenant_of(base.name))

    def _require_room(self) -> None:
        if self.disk.look():
            REFUSED.labels(DiskWatermarkReached.reason).inc()
            raise DiskWatermarkReached(
                f"the store's disk has less than {self.disk.stop_bytes >> 20} MiB left: writing goes on when"
                f" {self.disk.resume_bytes >> 20} MiB are free"
            )

    def _replaced(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> Use:
        """What the store holds of these documents; bytes as of the knowledge base's average reference."""
        versions = self._inner.versions(base, [document.key for document in documents])
        references = sum(len(version.memory_ids) for version in versions.values())
        held = self._held(base)
        return Use(references, held.bytes * references // max(1, held.references))

    def _held(self, base: KnowledgeBase) -> Use:
        counts = self._inner.statistics(base)
        size_bytes = (
            counts.payload_bytes + counts.text_bytes + counts.references * 4 * base.identity.dimension
        )
        return Use(counts.references, size_bytes)

    def _count(self, tenant: str) -> Use:
        use = Use()
        for base in self._inner.knowledge_bases():
            if tenant_of(base.name) == tenant and not base.problem:
                held = self._held(base)
                use.references += held.references
                use.bytes += held.bytes
        return use


def _size(document: NewDocument) -> int:
    return sum(
        len(reference.text.encode()) + len(reference.payload) + reference.vector.nbytes
        for reference in document.references
    )
