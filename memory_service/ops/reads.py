"""Reads of references: counted in memory, added to the store now and then. Any number of processes add up.

A process that is killed loses what it counted since it last stored: at most an interval's.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from random import Random

from memory_service.errors import KnowledgeBaseNotFound
from memory_service.service import Runtime
from memory_service.stores.store import KnowledgeBase, Retrieved, Store
from memory_service.telemetry.logs import logger

_MOST = 1 << 16
"""References of a knowledge base that are counted between two visits to the store; others have to wait."""


def reads_by_document(store: Store, base: KnowledgeBase, references: int) -> Counter[str]:
    """Reads of documents, by key, of so many of the most read references."""
    reads = Counter[str]()
    for one in store.most_read(base, references):
        reads[one.document_key] += one.reads
    return reads


class ReadCounter:
    """For one event loop. Counts nothing where `usage_interval_s` is 0.

    A retrieval of a share of 0.7 counts for 1/0.7 on average: once, and with a probability of 0.43 twice.
    """

    def __init__(self, runtime: Runtime, random: Random | None = None) -> None:
        """random: decides which retrievals are counted, and for how many."""
        self._runtime = runtime
        self._random = random or Random()
        self._interval_s, self._share = runtime.settings.usage_interval_s, runtime.settings.usage_share
        self._counts: dict[KnowledgeBase, Counter[tuple[str, int]]] = {}
        self._storing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def count(self, base: KnowledgeBase, retrieved: Retrieved) -> None:
        """Each reference that a retrieval found is read once."""
        if not self._interval_s or (self._share < 1 and self._random.random() >= self._share):
            return
        rest, whole = math.modf(1 / self._share)
        weight = int(whole) + (self._random.random() < rest)
        counts = self._counts.setdefault(base, Counter())
        for reference in {(hit.document_key, hit.chunk_number) for hits in retrieved.hits for hit in hits}:
            if len(counts) < _MOST or reference in counts:
                counts[reference] += weight

    def start(self) -> None:
        """Begins to visit the store."""
        if self._interval_s:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stores what is counted."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self.store_all()

    async def store_all(self) -> None:
        """Adds the counts to the store; those that it does not take now are kept, also where the caller leaves."""
        await asyncio.shield(self._store_all())

    async def _store_all(self) -> None:
        async with self._storing:  # who comes meanwhile waits until what was counted before is stored
            for base in list(self._counts):
                if counts := self._counts.pop(base):
                    try:
                        await self._runtime.run("write", self._runtime.store.add_reads, base, counts)
                    except KnowledgeBaseNotFound:
                        continue
                    except Exception as error:
                        logger().warning("reads_not_stored", knowledge_base=base.name, problem=str(error))
                        self._counts[base] = counts + self._counts.get(base, Counter())

    async def _run(self) -> None:
        while True:  # at random times, so that the pods of a service seldom come at once
            await asyncio.sleep(self._interval_s * self._random.uniform(0.5, 1.0))
            await self.store_all()
