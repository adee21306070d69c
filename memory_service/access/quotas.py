"""What a tenant may store and how often it may call: defaults of the settings, or its own in the key file."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from memory_service.access.authorization import tenant_of
from memory_service.errors import KnowledgeBaseDamaged, KnowledgeBaseNotFound, QuotaExceeded, RateExceeded
from memory_service.telemetry.metrics import REFUSED

if TYPE_CHECKING:
    from memory_service.stores.store import KnowledgeBase, NewDocument, Statistics, Store, StoredVersion

_COUNTED_S = 60.0
"""Other pods write for the same tenants: so long a count is good for."""


class Quota(BaseModel):
    """Limits of one tenant; 0 is no limit. bytes: of texts, vectors and memories, not of the disk."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    references: int = Field(default=0, ge=0)
    bytes: int = Field(default=0, ge=0)
    requests_per_s: float = Field(default=0.0, ge=0)


class Rates:
    """Token buckets of the tenants, one second's worth each. Lives on the event loop."""

    def __init__(self, quota_of: Callable[[str], Quota]) -> None:
        self._quota_of = quota_of
        self._buckets: dict[str, tuple[float, float]] = {}

    def admit(self, tenant: str) -> None:
        """Takes one request from the tenant's bucket; raises RateExceeded when it is empty."""
        rate = self._quota_of(tenant).requests_per_s
        if not rate:
            return
        now, size = time.monotonic(), max(rate, 1.0)
        left, at = self._buckets.get(tenant, (size, now))
        left = min(size, left + (now - at) * rate)
        if left < 1.0:
            self._buckets[tenant] = (left, now)
            REFUSED.labels(RateExceeded.reason).inc()
            raise RateExceeded(
                f"more than {rate:g} requests a second: send fewer, or request a larger quota",
                retry_after_s=(1.0 - left) / rate,
                limit=rate,
            )
        self._buckets[tenant] = (left - 1.0, now)


class Use(NamedTuple):
    """What a tenant stores, or a document adds to it."""

    references: int = 0
    bytes: int = 0

    def plus(self, more: Use) -> Use:
        """Both together."""
        return Use(self.references + more.references, self.bytes + more.bytes)

    def less(self, other: Use) -> Use:
        """This without the other; may be negative."""
        return Use(self.references - other.references, self.bytes - other.bytes)

    @classmethod
    def of(cls, references: int, size_bytes: int, dimension: int, reserved_bytes: int = 0) -> Use:
        """Of references with vectors, and `size_bytes` of texts and payloads."""
        return cls(references, size_bytes + 4 * dimension * references + reserved_bytes)


class Admission(NamedTuple):
    """The documents of a batch that may be written, and why the others may not, by their keys."""

    documents: list[NewDocument]
    refused: dict[str, QuotaExceeded]


class WriteGuard:
    """Quotas of what tenants store, checked for each document before a batch is written. Thread-safe.

    A document whose memories are written later counts as if they were, by the longest payload there is: so they find
    room. What tenants store is counted by the store once a minute at most, and added up in between.
    """

    def __init__(
        self,
        store: Store,
        quota_of: Callable[[str], Quota],
        payload_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """payload_bytes: of the longest payload."""
        self._store = store
        self._quota_of = quota_of
        self._payload_bytes = payload_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._uses: dict[str, tuple[Use, float]] = {}

    @contextlib.contextmanager
    def writing(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> Iterator[Admission]:
        """Around `Store.write` of the documents that are admitted.

        A document that needs no more than the one it replaces always is, also after the quota was made smaller.
        """
        tenant = tenant_of(base.name)
        quota = self._quota_of(tenant)
        if not (quota.references or quota.bytes):
            yield Admission(list(documents), {})
            return
        with self._lock:
            admission, added = self._admit(tenant, quota, base, documents)
            self._add(tenant, added)
        try:
            yield admission
        except BaseException:
            with self._lock:
                self._add(tenant, Use().less(added))
            raise

    def forget(self, base: KnowledgeBase) -> None:
        """After documents of `base` were deleted, cooled or rewritten, or all of it went: the store counts again."""
        with self._lock:
            self._uses.pop(tenant_of(base.name), None)

    def use_of(self, base: KnowledgeBase, counts: Statistics) -> Use:
        """What a knowledge base counts for."""
        reserved_bytes = counts.unwritten_references * self._payload_bytes
        size_bytes = counts.payload_bytes + counts.text_bytes
        return Use.of(counts.references, size_bytes, base.identity.dimension, reserved_bytes)

    def _admit(
        self, tenant: str, quota: Quota, base: KnowledgeBase, documents: Sequence[NewDocument]
    ) -> tuple[Admission, Use]:
        """Which documents fit, in their order, and what they add."""
        stored = self._store.versions(base, [document.key for document in documents])
        needed: dict[str, Use] = {}
        for document in documents:
            before = stored.get(document.key)
            needed[document.key] = self._of_document(base, document).less(
                Use() if before is None else self._of_version(base, before)
            )
        use, counted_at = self._uses.get(tenant, (Use(), -_COUNTED_S))
        whole = Use()
        for one in needed.values():
            whole = whole.plus(Use(*(max(0, more) for more in one)))
        if self._clock() - counted_at >= _COUNTED_S or _excess(use, whole, quota):
            use = self._counted(tenant)
            self._uses[tenant] = use, self._clock()
        admitted, refused, added = [], {}, Use()
        for document in documents:
            more = needed[document.key]
            if excess := _excess(use.plus(added), more, quota):
                refused[document.key] = _refusal(*excess)
                REFUSED.labels(QuotaExceeded.reason).inc()
            else:
                admitted.append(document)
                added = added.plus(more)
        return Admission(admitted, refused), added

    def _add(self, tenant: str, more: Use) -> None:
        use, counted_at = self._uses[tenant] if tenant in self._uses else (Use(), -_COUNTED_S)
        self._uses[tenant] = use.plus(more), counted_at

    def _counted(self, tenant: str) -> Use:
        use = Use()
        for base in self._store.knowledge_bases():
            if tenant_of(base.name) == tenant and not base.problem:
                # One that was dropped or found damaged meanwhile says nothing about documents of the others.
                with contextlib.suppress(KnowledgeBaseNotFound, KnowledgeBaseDamaged):
                    use = use.plus(self.use_of(base, self._store.statistics(base)))
        return use

    def _of_document(self, base: KnowledgeBase, document: NewDocument) -> Use:
        count = len(document.references)
        size_bytes = sum(len(one.text.encode()) + len(one.payload) for one in document.references)
        reserved_bytes = 0 if document.written else count * self._payload_bytes
        return Use.of(count, size_bytes, base.identity.dimension, reserved_bytes)

    def _of_version(self, base: KnowledgeBase, version: StoredVersion) -> Use:
        count = len(version.memory_ids)
        reserved_bytes = 0 if version.written else count * self._payload_bytes
        return Use.of(count, version.size_bytes, base.identity.dimension, reserved_bytes)


def _refusal(name: str, held: int, limit: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"{held} {name} are stored and this document would exceed the quota of {limit}: delete documents or"
        " request a larger quota",
        quantity=name,
        held=held,
        limit=limit,
    )


def _excess(use: Use, more: Use, quota: Quota) -> tuple[str, int, int] | None:
    """(quantity, stored, limit) of the first limit that `more` would exceed."""
    for name in ("references", "bytes"):
        held, limit, needed = getattr(use, name), getattr(quota, name), getattr(more, name)
        if limit and needed > 0 and held + needed > limit:
            return name, held, limit
    return None
