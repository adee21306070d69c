"""Cold start: memories that are written after their documents were stored, when first retrieved or in the background.

retrieve    hits without a memory are waited for, a little while; what is late is left out of the answer
write       first what was asked for, then the rest of those documents, then, if set so, all others
store       a document takes its own place once all its memories are there, unless it was changed meanwhile

One task of the event loop works through all of it; the model's thread encodes, the writer's thread stores.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from memory_model.errors import Memory3Error
from memory_service.access.authorization import Catalogue
from memory_service.access.quotas import WriteGuard
from memory_service.errors import DocumentNotFound
from memory_service.ops.logs import logger
from memory_service.settings import Settings
from memory_service.stores import Found, KnowledgeBase, NewReference, Query, Retrieved
from memory_service.write.content_hash import is_unwritten, real_hash
from memory_service.write.document import PendingDocument, checked
from memory_service.write.encoder import Encoder
from memory_service.write.pipeline import Threads

_PAGE_KEYS = 1024
# What a retrieval asks for waits until those that are being written are done.
_REFERENCES_AT_ONCE = 16
# After an error of the store the background waits so long, twice as long after each one that follows.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0

Result = TypeVar("Result")
Name = tuple[int, str]
"""Number of a knowledge base and key of a document."""


@dataclass
class _Asked:
    """Chunks of one document that retrievals wait for; a future's None says that the memory cannot be had."""

    base: KnowledgeBase
    chunks: dict[int, asyncio.Future[NewReference | None]] = field(default_factory=dict)

    def give_up(self) -> None:
        for future in self.chunks.values():
            if not future.done():
                future.set_result(None)


@dataclass
class _Open:
    """A document that is being written; `stored_hash` names the version whose place it takes."""

    base: KnowledgeBase
    document: PendingDocument
    stored_hash: bytes


@dataclass
class Progress:
    """What this process did in a knowledge base since it started: documents finished and given up, its last error."""

    base: KnowledgeBase
    written: int = 0
    failed: int = 0
    running: bool = False
    problem: str = ""


class LateMemories:
    """Writes what a cold start left unwritten. For one event loop."""

    def __init__(
        self, catalogue: Catalogue, guard: WriteGuard, encoder: Encoder, threads: Threads, settings: Settings,
        draining: asyncio.Event,
    ) -> None:  # fmt: skip
        self._catalogue = catalogue
        self._guard = guard
        self._encoder = encoder
        self._threads = threads
        self._settings = settings
        self._draining = draining
        self._asked: dict[Name, _Asked] = {}
        self._open: dict[Name, _Open] = {}
        self._failed: set[tuple[Name, bytes]] = set()
        self._progress: dict[int, Progress] = {}
        self._bases: dict[int, KnowledgeBase] = {}  # in which there may be documents without memories
        self._pages: dict[int, deque[str]] = {}
        self._pause_s = 0.0  # after an error of the store
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins with what an earlier process left."""
        for base in self._catalogue.store.knowledge_bases():
            if not (base.problem or self._catalogue.mismatch(base) or self._settings.store_read_only):
                self.look_at(base)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Leaves the rest to the next process; `draining` is set by then."""
        self._work.set()
        if self._task is not None:
            await self._task

    def look_at(self, base: KnowledgeBase) -> None:
        """There may be documents without memories in `base`."""
        if self._settings.write_in_background:
            self._bases[base.number] = base
            self._work.set()

    def progress(self) -> list[Progress]:
        """Of every knowledge base in which something was written; on the event loop."""
        return list(self._progress.values())

    def _progress_in(self, base: KnowledgeBase) -> Progress:
        return self._progress.setdefault(base.number, Progress(base))

    # What retrievals ask for

    async def complete(
        self, base: KnowledgeBase, query: Query, retrieved: Retrieved, remaining_s: float | None
    ) -> Retrieved:
        """The retrieved with the memories that were not written yet, less the hits whose memory comes too late.

        remaining_s: until the request's deadline, None without one.
        """
        late = {
            hit.memory_id: hit
            for hits in retrieved.hits
            for hit in hits
            if retrieved.payloads.get(hit.memory_id) == b""
        }
        if not late:
            return retrieved
        started = time.perf_counter_ns()
        patience_s = min(self._settings.cold_wait_s, 0.8 * (remaining_s or self._settings.default_deadline_s))
        futures = {memory_id: self._future(base, hit) for memory_id, hit in late.items()}
        await asyncio.wait(futures.values(), timeout=patience_s)
        there = {
            memory_id: reference
            for memory_id, future in futures.items()
            if future.done() and (reference := future.result()) is not None
        }
        payloads = {memory_id: payload for memory_id, payload in retrieved.payloads.items() if payload}
        payloads |= {r.memory_id: r.payload for r in there.values() if r.memory_id not in query.held_ids}
        hits = []
        for of_query in retrieved.hits:
            kept = (hit for hit in of_query if hit.memory_id in there or hit.memory_id not in late)
            # While a document takes its own place a process beside the one that writes may find both of its versions
            # in a server's store: the first one counts.
            unique = {hit.memory_id: hit for hit in reversed([_finished(hit, there) for hit in kept])}
            hits.append(list(reversed(unique.values())))
        waited_us = (time.perf_counter_ns() - started) // 1000
        return replace(retrieved, hits=hits, payloads=payloads, fetch_us=retrieved.fetch_us + waited_us)

    def _future(self, base: KnowledgeBase, hit: Found) -> asyncio.Future[NewReference | None]:
        name = (base.number, hit.document_key)
        asked = self._asked.setdefault(name, _Asked(base))
        future = asked.chunks.get(hit.chunk_number)
        if future is None:
            future = asked.chunks[hit.chunk_number] = asyncio.get_running_loop().create_future()
            self._answer(name)
            self._work.set()
        return future

    def _answer(self, name: Name) -> None:
        """Gives the memories of an open document that are there to those who asked."""
        opened, asked = self._open.get(name), self._asked.get(name)
        if opened is None or asked is None:
            return
        for chunk, future in asked.chunks.items():
            if not future.done() and (reference := opened.document.reference(chunk)) is not None:
                future.set_result(reference)

    # Writing

    async def _run(self) -> None:
        while not self._draining.is_set():
            self._work.clear()
            try:
                places = await self._next_places()
                if places:
                    await self._write(places)
                    await self._store_finished()
                self._pause_s = 0.0
                if places:
                    continue
            except Exception as error:  # of the store
                self._begin_again_later(error)
            work, drain = (asyncio.create_task(event.wait()) for event in (self._work, self._draining))
            await asyncio.wait(
                {work, drain}, timeout=self._pause_s or None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in (work, drain):
                task.cancel()
        for asked in self._asked.values():
            asked.give_up()

    def _begin_again_later(self, error: Exception) -> None:
        """From the store, after a pause or when something is asked for; the knowledge base it began with comes last."""
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        logger().error("late_memories_not_written", again_in_s=self._pause_s, exc_info=error)
        for opened in self._open.values():
            self._progress_in(opened.base).problem = (
                str(error) if isinstance(error, Memory3Error) else "store failed"
            )
        if self._settings.write_in_background:
            self._bases |= {opened.base.number: opened.base for opened in self._open.values()}
        self._forget(list(self._open))
        self._pages.clear()
        if self._bases:
            number = next(iter(self._bases))
            self._bases[number] = self._bases.pop(number)

    async def _next_places(self) -> list[tuple[_Open, int]]:
        """References to write next: those that are waited for alone, otherwise a few."""
        for name, asked in list(self._asked.items()):
            if name not in self._open and not await self._opened(asked.base, name[1]):
                asked.give_up()
                del self._asked[name]
        urgent = [
            (self._open[name], chunk)
            for name, asked in self._asked.items()
            for chunk, future in asked.chunks.items()
            if not future.done()
        ]
        most = _REFERENCES_AT_ONCE
        if urgent:
            return urgent[:most]
        places: list[tuple[_Open, int]] = []
        for opened in self._open.values():
            places += [(opened, place) for place in opened.document.missing()]
            if len(places) >= most:
                return places[:most]
        while len(places) < most and (following := await self._open_next()) is not None:
            places += [(following, place) for place in following.document.missing()]
        return places[:most]

    async def _open_next(self) -> _Open | None:
        """The next document that nobody asked for; None when there is none."""
        while self._bases:
            number, base = next(iter(self._bases.items()))
            page = self._pages.setdefault(number, deque())
            if not page:
                keys = await self._read(self._catalogue.store.unwritten, base, _PAGE_KEYS)
                page.extend(key for key in keys if (number, key) not in self._open)
            while page:
                if opened := await self._opened(base, page.popleft()):
                    return opened
            del self._bases[number]
        return None

    async def _opened(self, base: KnowledgeBase, key: str) -> _Open | None:
        """Opens a document; None where there is none of this key, its memories are there, or they cannot be made."""
        try:
            stored = await self._read(self._catalogue.store.document, base, key)
        except DocumentNotFound:
            return None
        ids = [memory_id for memory_id, _ in stored.references]
        name = (base.number, key)
        if not is_unwritten(key, stored.content_hash, ids) or (name, stored.content_hash) in self._failed:
            return None
        document = PendingDocument(
            0, key, stored.title, stored.metadata, real_hash(key, stored.content_hash, ids)
        )
        document.take([text for _, text in stored.references])
        opened = self._open[name] = _Open(base, document, stored.content_hash)
        return opened

    async def _write(self, places: Sequence[tuple[_Open, int]]) -> None:
        try:
            await self._encode(places)
        except Exception as error:
            if len(places) > 1:  # one of them is to blame
                for place in places:
                    await self._write([place])
                return
            opened = places[0][0]
            logger().error("late_memory_failed", document_key=opened.document.key, exc_info=error)
            name = (opened.base.number, opened.document.key)
            self._failed.add((name, opened.stored_hash))
            progress = self._progress_in(opened.base)
            progress.failed += 1
            progress.problem = f"document {opened.document.key!r}: its memories could not be written"
            self._forget([name])

    async def _encode(self, places: Sequence[tuple[_Open, int]]) -> None:
        texts = [opened.document.texts[place] for opened, place in places]
        loop = asyncio.get_running_loop()
        encoded = await loop.run_in_executor(self._threads.encode, self._encoder.encode, texts)
        encoded = checked(encoded, len(texts), self._encoder.description.identity.dimension)
        for (opened, place), vector, payload in zip(places, encoded.vectors, encoded.payloads, strict=True):
            opened.document.fill(place, vector, payload)
            self._answer((opened.base.number, opened.document.key))

    async def _store_finished(self) -> None:
        """Documents with all their memories take their place; the answers are given before."""
        whole = {name: opened for name, opened in self._open.items() if not opened.document.missing()}
        for number in {number for number, _ in whole}:
            of_base = [opened for name, opened in whole.items() if name[0] == number]
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads.write, self._replace, of_base)
            self._progress_in(of_base[0].base).written += len(of_base)
        self._forget(list(whole))

    def _replace(self, finished: Sequence[_Open]) -> None:
        """In the writer's thread, so that no other version can come between the comparison and the write."""
        base, store = finished[0].base, self._catalogue.store
        stored = store.versions(base, [opened.document.key for opened in finished])
        same = [
            opened.document.finished()
            for opened in finished
            if (version := stored.get(opened.document.key)) and version.content_hash == opened.stored_hash
        ]
        if same:
            with self._guard.writing(base, same):
                store.write(base, same)

    def _forget(self, names: Sequence[Name]) -> None:
        for name in names:
            self._open.pop(name, None)
            if asked := self._asked.pop(name, None):
                asked.give_up()

    async def _read(self, function: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads.read, function, *arguments)


def _finished(hit: Found, there: dict[int, NewReference]) -> Found:
    reference = there.get(hit.memory_id)
    return hit if reference is None else hit._replace(memory_id=reference.memory_id, crc32c=reference.crc32c)
