"""What a tenant may store and how often it may call: defaults of the settings, or its own in the key file."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from memory_service.access.authorization import tenant_of
from memory_service.errors import QuotaExceeded, RateExceeded
from memory_service.telemetry.metrics import REFUSED, TENANT_QUOTA, TENANT_USE

if TYPE_CHECKING:
    from memory_service.stores.store import KnowledgeBase, NewDocument, Store

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

    def __init__(self, quota_of: Callable[[str], Quota], clock: Callable[[], float] = time.monotonic) -> None:
        self._quota_of = quota_of
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def admit(self, tenant: str) -> None:
        """Takes one request from the tenant's bucket; raises RateExceeded when it is empty."""
        rate = self._quota_of(tenant).requests_per_s
        if not rate:
            return
        now, size = self._clock(), max(rate, 1.0)
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
    """What a tenant stores, or a batch adds to it."""

    references: int = 0
    bytes: int = 0

    def plus(self, more: Use) -> Use:
        """Both together."""
        return Use(self.references + more.references, self.bytes + more.bytes)


class WriteGuard:
    """Quotas of what tenants store, checked before a batch is written. Thread-safe.

    What tenants store is counted by the store once a minute at most, and added up in between.
    """

    def __init__(
        self, store: Store, quota_of: Callable[[str], Quota], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._quota_of = quota_of
        self._clock = clock
        self._lock = threading.Lock()
        self._uses: dict[str, tuple[Use, float]] = {}

    @contextlib.contextmanager
    def writing(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> Iterator[None]:
        """Around `Store.write` of these documents; raises QuotaExceeded before it.

        What needs no more than before is admitted, also after the quota was made smaller.
        """
        tenant, references = tenant_of(base.name), [one for document in documents for one in document.references]
        sizes = (len(one.text.encode()) + len(one.payload) + one.vector.nbytes for one in references)
        quota, more = self._quota_of(tenant), Use(len(references), sum(sizes))
        if quota.references or quota.bytes:
            with self._lock:
                self._require_room(tenant, quota, more, base, documents)
        yield
        with self._lock:
            if tenant in self._uses:
                use, counted_at = self._uses[tenant]
                self._uses[tenant] = use.plus(more), counted_at

    def forget(self, base: KnowledgeBase) -> None:
        """After documents of `base`, or all of it, were deleted: the store counts again when it matters."""
        with self._lock:
            self._uses.pop(tenant_of(base.name), None)

    def _require_room(
        self, tenant: str, quota: Quota, more: Use, base: KnowledgeBase, documents: Sequence[NewDocument]
    ) -> None:
        use, counted_at = self._uses.get(tenant, (Use(), -_COUNTED_S))
        if self._clock() - counted_at >= _COUNTED_S or _excess(use, more, quota):
            bases = [one for one in self._store.knowledge_bases() if tenant_of(one.name) == tenant]
            use = reduce(Use.plus, (self._stored(one) for one in bases if not one.problem), Use())
            self._uses[tenant] = use, self._clock()
        for name in Use._fields:
            TENANT_USE.labels(tenant, name).set(getattr(use, name))
            TENANT_QUOTA.labels(tenant, name).set(getattr(quota, name))
        if _excess(use, more, quota) and (excess := _excess(use, more.plus(self._replaced(base, documents)), quota)):
            REFUSED.labels(QuotaExceeded.reason).inc()
            name, held, limit = excess
            raise QuotaExceeded(
                f"{held} {name} are stored and this batch would exceed the quota of {limit}: delete documents or"
                " request a larger quota",
                quantity=name,
                held=held,
                limit=limit,
            )

    def _replaced(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> Use:
        """What the store has of these documents, negative; bytes by the knowledge base's average reference."""
        versions = self._store.versions(base, [document.key for document in documents])
        references = sum(len(version.memory_ids) for version in versions.values())
        held = self._stored(base)
        return Use(-references, -held.bytes * references // max(1, held.references))

    def _stored(self, base: KnowledgeBase) -> Use:
        counts = self._store.statistics(base)
        vectors_bytes = counts.references * 4 * base.identity.dimension
        return Use(counts.references, counts.payload_bytes + counts.text_bytes + vectors_bytes)


def _excess(use: Use, more: Use, quota: Quota) -> tuple[str, int, int] | None:
    """(quantity, stored, limit) of the first limit that `more` would exceed."""
    for name in ("references", "bytes"):
        held, limit, needed = getattr(use, name), getattr(quota, name), getattr(more, name)
        if limit and needed > 0 and held + needed > limit:
            return name, held, limit
    return None
