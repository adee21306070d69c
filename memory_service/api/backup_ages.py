"""Gauges of the age of each knowledge base's newest backup, as the records at the place of the backups have it."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from memory3.errors import Memory3Error, MissingFile
from memory_service.archive import Archive
from memory_service.settings import Settings
from memory_service.stores.store import KnowledgeBase, Store
from memory_service.telemetry.logs import logger

INTERVAL_S = 300.0
"""Between two looks at the records."""


class Families(NamedTuple):
    """The gauges, without values."""

    age: GaugeMetricFamily
    limit: GaugeMetricFamily


def families() -> Families:
    """New gauges with their names and labels."""
    labels = ["knowledge_base"]
    return Families(
        GaugeMetricFamily(
            "memory_service_backup_age_seconds", "Of the newest complete backup, or of what has none", labels=labels
        ),
        GaugeMetricFamily("memory_service_backup_age_limit_seconds", "How old it may be", labels=labels),
    )


class BackupAges(Collector):
    """Reads the records of backups in a thread of its own; `close` ends it.

    The age of a knowledge base without a backup is its own; a name of `backups_of` that no knowledge base has is
    infinitely old, because no run backs it up. Where the records cannot be read, the newest known backup goes on
    ageing. Thread-safe.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        """Raises InvalidInput for a place that cannot hold backups; a folder may be made later."""
        self._store, self._place = store, settings.backups.rstrip("/")
        self._names = {name.strip() for name in settings.backups_of.split(",") if name.strip()}
        self._limit_s = 3600 * settings.backups_max_age_h
        self._made_at: dict[str, datetime] = {}
        self._unread: set[str] = set()
        self._ending = threading.Event()
        with contextlib.suppress(MissingFile):
            Archive(self._place, create=False)
        self._thread = threading.Thread(target=self._run, name="backup-ages", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops reading; a place that does not answer is not waited for."""
        self._ending.set()
        self._thread.join(1.0)

    def look(self) -> None:
        """Reads the newest record of every knowledge base."""
        for name in self._watched():
            if self._ending.is_set():
                return
            try:
                newest = _newest(f"{self._place}/{name}")
            except Memory3Error as error:
                if name not in self._unread:
                    self._unread.add(name)
                    logger().warning("backup_not_read", knowledge_base=name, problem=str(error))
                continue
            self._unread.discard(name)
            if newest is None:
                self._made_at.pop(name, None)
            else:
                self._made_at[name] = newest

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See prometheus_client: the ages as they are now."""
        gauges, now = families(), datetime.now(timezone.utc)
        for name, base in self._watched().items():
            since = self._made_at.get(name)
            if since is None and base is not None:
                if base.problem:
                    continue
                since = base.created_at
            gauges.age.add_metric([name], math.inf if since is None else max(0.0, (now - since).total_seconds()))
            gauges.limit.add_metric([name], self._limit_s)
        yield from gauges

    def _watched(self) -> dict[str, KnowledgeBase | None]:
        """By name; None for one that is to be there and is not."""
        found = {base.name: base for base in self._store.knowledge_bases()}
        return {name: found.get(name) for name in sorted(self._names)} if self._names else {**found}

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self.look()
            except Exception as error:
                logger().error("backups_not_looked_at", exc_info=error)
            self._ending.wait(INTERVAL_S)


def _newest(place: str) -> datetime | None:
    """When the newest complete backup was made; None where there is none."""
    try:
        return Archive(place, create=False).backup().made_at
    except MissingFile:
        return None
