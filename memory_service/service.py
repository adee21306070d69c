"""What the calls of a process share: its knowledge bases as callers may use them, and its threads."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from memory3.errors import IdentityMismatch, shortened
from memory_service.access.authorization import Access, Scope, is_name
from memory_service.access.quotas import WriteGuard
from memory_service.budget import Budget
from memory_service.encoder import Encoder
from memory_service.errors import BadRequest, KnowledgeBaseNotFound
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE, Settings
from memory_service.stores.store import KnowledgeBase, Store, require_same, require_sound, unknown_knowledge_base
from memory_service.threads import FairThread

_REMEDY = "start the service with that model, or delete the knowledge base and ingest it again"

Work = Literal["read", "filter", "write", "write_large", "prepare", "prepare_large", "encode", "embed"]
"""Kinds of threads. `encode` has one thread: the model's.

write, prepare: documents; large ones have a thread of their own, so that small ones do not wait for them.

embed: texts of queries, so that they delay neither documents nor searches by vector. filter: searches and lists with
filters, which may read every document, so that they delay only each other.
"""
Result = TypeVar("Result")
_SLICE_S = 0.5


class Runtime:
    """Lives on the event loop of a process.

    draining: set when the service stops; streams and background work then end after the batch at hand.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        guard: WriteGuard,
        encoder: Encoder,
        draining: asyncio.Event,
        budget: Budget,
    ) -> None:
        self.settings = settings
        self.store = store
        self.guard = guard
        self.encoder = encoder
        self.draining = draining
        counts: dict[Work, int] = {
            "read": settings.read_connections,
            "filter": settings.read_connections,
            "prepare": 1,
            "prepare_large": 1,
            "embed": 1,
        }
        fair: tuple[Work, ...] = ("write", "write_large", "encode")
        self._threads = {work: ThreadPoolExecutor(count, work) for work, count in counts.items()}
        self._fair = {work: FairThread(work) for work in fair}
        self._writing: dict[int, asyncio.Lock] = {}
        self.budget = budget
        self._encode_s = 0.0  # for a reference
        self._known: set[str] = set()

    async def run(self, work: Work, function: Callable[..., Result], *arguments: object) -> Result:
        """What the function returns or raises, in a thread of its kind."""
        if work in self._fair:
            return await self.run_sized(work, 1, function, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads[work], function, *arguments)

    async def run_sized(self, work: Work, size: int, function: Callable[..., Result], *arguments: object) -> Result:
        """As `run`, for work about so many references; small work of the kind comes first."""
        submitted = self._fair[work].submit(size, functools.partial(function, *arguments))
        result: Result = await asyncio.wrap_future(submitted)
        return result

    def sole_writer(self, base: KnowledgeBase) -> asyncio.Lock:
        """For whoever writes large documents, and whoever needs that nothing is replaced meanwhile."""
        return self._writing.setdefault(base.number, asyncio.Lock())

    def slice_size(self) -> int:
        """References that are encoded at once: as many as take half a second, which a small call may wait."""
        most = self.settings.ingest_batch_references
        return most if not self._encode_s else max(1, min(most, int(_SLICE_S / self._encode_s)))

    async def encode(self, size: int, function: Callable[[list[str]], Result], texts: list[str]) -> Result:
        """Runs the model on a slice of a document or batch of so many references."""

        def timed() -> Result:
            began = time.perf_counter()
            result = function(texts)
            taken_s = (time.perf_counter() - began) / max(1, len(texts))
            self._encode_s = 0.5 * (self._encode_s or taken_s) + 0.5 * taken_s
            return result

        return await self.run_sized("encode", size, timed)

    async def find(self, access: Access, name: str, scope: Scope = Scope.READ) -> KnowledgeBase:
        """The caller's knowledge base of this name, usable or not; empty means the default one.

        Raises KnowledgeBaseNotFound, and ScopeTooSmall when the caller may see it but not do this. One that the caller
        has no scope on is answered exactly as one that does not exist.
        """
        name = name or DEFAULT_KNOWLEDGE_BASE
        stored_name = access.stored_name(name)
        if access.scope_on(name) is not None:
            with contextlib.suppress(KnowledgeBaseNotFound):
                if stored_name in self._known:
                    base = self.store.knowledge_base(stored_name)
                else:  # the store may have to look for it
                    base = await self.run("read", self.store.knowledge_base, stored_name)
                    self._known.add(stored_name)
                access.require(name, scope)
                return base
        self._known.discard(stored_name)
        seen = await self.run("read", self.seen_by, access)
        raise unknown_knowledge_base(name, [access.seen_name(base.name) or "" for base in seen])

    async def open(self, access: Access, name: str, scope: Scope = Scope.READ) -> KnowledgeBase:
        """As `find`; raises KnowledgeBaseDamaged, and the mismatch of the first id that is not our encoder's."""
        base = await self.find(access, name, scope)
        require_sound(base)
        what = f"knowledge base {access.seen_name(base.name)!r} cannot be used: {_REMEDY}"
        require_same(base.identity, self.encoder.description.identity, what)
        return base

    def seen_by(self, access: Access) -> list[KnowledgeBase]:
        """Those that the caller may see, by name; damaged ones too."""
        return [base for base in self.store.knowledge_bases() if access.seen_name(base.name) is not None]

    def problem_of(self, base: KnowledgeBase) -> str:
        """Why the knowledge base cannot be used: it is damaged or of another encoder; empty when it can."""
        try:
            require_same(base.identity, self.encoder.description.identity, _REMEDY)
            return base.problem
        except IdentityMismatch as error:
            return base.problem or str(error)

    def create(self, access: Access, name: str, description: str = "") -> KnowledgeBase:
        """A new knowledge base of our encoder; raises BadRequest for an invalid name, KnowledgeBaseExists."""
        if not is_name(access, name):
            rule = "1 to 64 letters, digits, '_', '-' or '.', the first a letter or digit"
            raise BadRequest(f"{shortened(name, 80)!r} is no name for a knowledge base: expected {rule}", field="name")
        if len(description.encode()) > 1024:
            raise BadRequest("the description is longer than 1024 bytes", field="description")
        access.require(name, Scope.ADMIN)
        return self.store.create(access.stored_name(name), description, self.encoder.description.identity)

    def close(self) -> None:
        """Waits for what the threads do."""
        for threads in self._threads.values():
            threads.shutdown()
        for thread in self._fair.values():
            thread.shutdown()
