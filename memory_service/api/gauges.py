"""Gauges of what the store holds, read from the store at every scrape."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from memory3.errors import Memory3Error
from memory_service.access.authorization import tenant_of
from memory_service.access.quotas import Quota, Use
from memory_service.errors import StoreUnavailable
from memory_service.service import Runtime
from memory_service.stores.store import KnowledgeBase, Revision, Statistics

STATES = ("ready", "damaged", "unavailable", "mismatched")


class Families(NamedTuple):
    """The gauges, without values."""

    states: GaugeMetricFamily
    unwritten: GaugeMetricFamily
    use: GaugeMetricFamily
    quota: GaugeMetricFamily


def families() -> Families:
    """New gauges with their names and labels."""
    tenant = ["tenant", "quantity"]
    return Families(
        GaugeMetricFamily("memory_service_knowledge_bases", "Knowledge bases by state", labels=["state"]),
        GaugeMetricFamily("memory_service_unwritten", "Documents and references without memories", labels=["what"]),
        GaugeMetricFamily("memory_service_tenant_use", "What a tenant stores", labels=tenant),
        GaugeMetricFamily("memory_service_tenant_quota", "What it may store", labels=tenant),
    )


def state_of(base: KnowledgeBase, runtime: Runtime) -> str:
    """One of STATES."""
    if base.problem:
        return "damaged" if base.damaged else "unavailable"
    return "mismatched" if runtime.problem_of(base) else "ready"


class StoreGauges(Collector):
    """Counts by state, tenant and unwritten memories. A knowledge base is counted again when its revision changed.

    Thread-safe: Prometheus scrapes from its own threads. A gauge whose count fails keeps its last value, and all do
    while the store is away.
    """

    def __init__(self, runtime: Runtime, quota_of: Callable[[str], Quota], store_away: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._quota_of = quota_of
        self._store_away = store_away
        self._counted: dict[int, tuple[Revision, Statistics]] = {}
        self._lock = threading.Lock()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See prometheus_client: the gauges as they are now."""
        gauges = families()
        bases = self._runtime.store.knowledge_bases()
        with self._lock:
            self._count(bases)
            none = None, Statistics(0, 0, 0, 0, 0)
            counts = {base.number: self._counted.get(base.number, none)[1] for base in bases}
            self._counted = {number: one for number, one in self._counted.items() if number in counts}
        found = Counter(state_of(base, self._runtime) for base in bases)
        for state in STATES:
            gauges.states.add_metric([state], found[state])
        gauges.unwritten.add_metric(["documents"], sum(one.unwritten_documents for one in counts.values()))
        gauges.unwritten.add_metric(["references"], sum(one.unwritten_references for one in counts.values()))
        uses: defaultdict[str, Use] = defaultdict(Use)
        for base in bases:
            tenant = tenant_of(base.name)
            uses[tenant] = uses[tenant].plus(self._runtime.guard.use_of(base, counts[base.number]))
        for tenant, of_tenant in sorted(uses.items()):
            limits = self._quota_of(tenant)
            for name in Use._fields:
                gauges.use.add_metric([tenant, name], getattr(of_tenant, name))
                if limit := getattr(limits, name):
                    gauges.quota.add_metric([tenant, name], limit)
        yield from gauges

    def _count(self, bases: Iterable[KnowledgeBase]) -> None:
        """Counts what changed; a scrape must not wait for the timeout of the store at each knowledge base."""
        for base in bases:
            if self._store_away():
                return
            if base.problem:
                continue
            try:
                newest = self._runtime.store.revision(base)
                if base.number not in self._counted or newest != self._counted[base.number][0]:
                    self._counted[base.number] = newest, self._runtime.store.statistics(base)
            except StoreUnavailable:
                return
            except Memory3Error:  # the knowledge base was dropped meanwhile
                continue
