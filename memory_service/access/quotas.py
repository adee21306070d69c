"""What a tenant may hold and how often he may call: limits for everybody, others for single tenants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from memory_service.errors import QuotaExceeded, RateExceeded
from memory_service.ops.metrics import REFUSED, TENANT_QUOTA, TENANT_USE


class Quota(BaseModel):
    """Limits of one tenant; 0 is no limit. bytes: of texts, vectors and memories, not of the disk."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    references: int = Field(default=0, ge=0)
    bytes: int = Field(default=0, ge=0)
    requests_per_s: float = Field(default=0.0, ge=0)


@dataclass
class Use:
    """What a tenant holds."""

    references: int = 0
    bytes: int = 0


class Rates:
    """Token buckets, a second's worth each. Lives on the event loop."""

    def __init__(self, quota_of: Callable[[str], Quota], clock: Callable[[], float] = time.monotonic) -> None:
        self._quota_of = quota_of
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def admit(self, tenant: str) -> None:
        """Takes one request from the tenant's bucket; raises RateExceeded when it is empty."""
        rate = self._quota_of(tenant).requests_per_s
        if not rate:
            return
        now = self._clock()
        left, at = self._buckets.get(tenant, (max(rate, 1.0), now))
        left = min(max(rate, 1.0), left + (now - at) * rate)
        if left < 1.0:
            self._buckets[tenant] = (left, now)
            REFUSED.labels(RateExceeded.reason).inc()
            raise RateExceeded(
                f"more than {rate:g} requests a second: send fewer, or ask for a larger quota",
                retry_after_s=(1.0 - left) / rate, limit=rate,
            )  # fmt: skip
        self._buckets[tenant] = (left - 1.0, now)


class Holdings:
    """What tenants hold, counted by the store now and then and by what is written in between. Thread-safe."""

    def __init__(self, quota_of: Callable[[str], Quota], count: Callable[[str], Use]) -> None:
        """count: what the store holds of a tenant; takes as long as the store does."""
        self._quota_of = quota_of
        self._count = count
        self._lock = threading.Lock()
        self._uses: dict[str, Use] = {}

    def admit(self, tenant: str, more: Use, replaced: Callable[[], Use] = Use) -> None:
        """Raises QuotaExceeded when the tenant would hold too much.

        replaced: what goes when `more` is written; asked for only where the quota would not hold without it. Whoever
        holds as much as before, or less, is admitted: also one whose quota was made smaller.
        """
        quota = self._quota_of(tenant)
        if not quota.references and not quota.bytes:
            return
        with self._lock:
            use = self._uses.get(tenant)
            if use is None or _excess(use, more, quota):
                use = self._uses[tenant] = self._count(tenant)
            excess = _excess(use, more, quota)
            if excess:
                less = replaced()
                excess = _excess(use, Use(more.references - less.references, more.bytes - less.bytes), quota)
            self._show(tenant, use, quota)
        if excess:
            REFUSED.labels(QuotaExceeded.reason).inc()
            name, held, limit = excess
            raise QuotaExceeded(
                f"{held} {name} are stored and this batch would exceed the quota of {limit}: delete documents or ask"
                " for a larger quota",
                quantity=name, held=held, limit=limit,
            )  # fmt: skip

    def written(self, tenant: str, more: Use) -> None:
        """Adds what was stored."""
        with self._lock:
            use = self._uses.get(tenant)
            if use is not None:
                self._uses[tenant] = Use(use.references + more.references, use.bytes + more.bytes)

    def forget(self, tenant: str) -> None:
        """Something was removed: count again when it matters."""
        with self._lock:
            self._uses.pop(tenant, None)

    @staticmethod
    def _show(tenant: str, use: Use, quota: Quota) -> None:
        for name in ("references", "bytes"):
            TENANT_USE.labels(tenant, name).set(getattr(use, name))
            TENANT_QUOTA.labels(tenant, name).set(getattr(quota, name))


def _excess(use: Use, more: Use, quota: Quota) -> tuple[str, int, int] | None:
    for name in ("references", "bytes"):
        held, limit, needed = getattr(use, name), getattr(quota, name), getattr(more, name)
        if limit and needed > 0 and held + needed > limit:
            return name, held, limit
    return None
