"""What the calls of a service process share, and the threads that do what would block its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from memory_service.access.authorization import Access, Catalogue, Scope
from memory_service.access.quotas import WriteGuard
from memory_service.errors import KnowledgeBaseNotFound
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE, Settings
from memory_service.stores import KnowledgeBase, Store
from memory_service.write.encoder import Encoder

Work = Literal["read", "write", "prepare", "encode", "embed"]
"""Kinds of threads. `write` and `encode` have one thread each: the store's writer and the model.

embed: texts of queries, so that they delay neither documents nor searches by vector.
"""
Result = TypeVar("Result")


class Runtime:
    """Lives on the event loop of a process.

    draining: set when the service stops; streams and background work then end after the batch at hand.
    """

    def __init__(
        self, settings: Settings, catalogue: Catalogue, guard: WriteGuard, encoder: Encoder, draining: asyncio.Event
    ) -> None:  # fmt: skip
        self.settings = settings
        self.catalogue = catalogue
        self.store: Store = catalogue.store
        self.guard = guard
        self.encoder = encoder
        self.draining = draining
        counts: dict[Work, int] = {
            "read": settings.read_connections, "write": 1, "prepare": 1, "encode": 1, "embed": 1
        }  # fmt: skip
        self._threads = {work: ThreadPoolExecutor(count, work) for work, count in counts.items()}
        self._known: set[str] = set()

    async def run(self, work: Work, function: Callable[..., Result], *arguments: object) -> Result:
        """What the function returns or raises, in a thread of its kind."""
        return await asyncio.get_running_loop().run_in_executor(self._threads[work], function, *arguments)

    async def find(self, access: Access, name: str, scope: Scope = Scope.READ) -> KnowledgeBase:
        """See Catalogue.find. The store may have to look for a name that is new here: that runs in a thread."""
        stored_name = access.stored_name(name or DEFAULT_KNOWLEDGE_BASE)
        if stored_name not in self._known:
            base = await self.run("read", self.catalogue.find, access, name, scope)
            self._known.add(stored_name)
            return base
        try:
            return self.catalogue.find(access, name, scope)
        except KnowledgeBaseNotFound:
            self._known.discard(stored_name)
            raise

    async def open(self, access: Access, name: str, scope: Scope = Scope.READ) -> KnowledgeBase:
        """See Catalogue.open."""
        base = await self.find(access, name, scope)
        self.catalogue.require_ours(access, base)
        return base

    def close(self) -> None:
        """Waits for what the threads do."""
        for threads in self._threads.values():
            threads.shutdown()
