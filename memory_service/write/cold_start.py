"""Cold start: memories that are written after their documents were stored, when first retrieved or in the background.

retrieve    hits without a memory are waited for, a little while; what is late is left out of the answer
write       first what retrievals wait for, then the rest of those documents, then all others
store       a document is replaced once all its memories are there, unless it was changed meanwhile

Each knowledge base with such documents has a task of its own, so that one that fails or is dropped holds up no other;
the model's thread encodes for all of them, the writer's thread stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from memory3.errors import Memory3Error, shortened
from memory_service.encoder import checked
from memory_service.errors import DocumentNotFound, KnowledgeBaseNotFound
from memory_service.service import Runtime
from memory_service.stores.store import Found, KnowledgeBase, NewReference, Query, Retrieved
from memory_service.telemetry.logs import logger
from memory_service.write.document import PendingDocument

_PAGE_KEYS = 1024
_SHUFFLED_KEYS = 64
_REFERENCES_AT_ONCE = 16
"""A retrieval waits until those that are being written are done."""
_BACKGROUND_SIZE = 1000
"""As a document of so many references: what nobody waits for lets others go first."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
"""After an error of the store the task waits so long, twice as long after each one that follows."""

Requested = dict[int, "asyncio.Future[NewReference | None]"]
"""What retrievals wait for, by the memory ids of their hits; a future's None says that the memory cannot be had."""


class _Opened(NamedTuple):
    """A stored version whose memories are being written. chunks: by the memory ids of its hits, which name it."""

    document: PendingDocument
    chunks: dict[int, int]


class Progress(NamedTuple):
    """How far a cold start is since the process started. written, failed: documents; problem: the last error."""

    written: int = 0
    failed: int = 0
    problem: str = ""


class LateMemories:
    """Writes what a cold start left unwritten. For one event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._backlogs: dict[int, _Backlog] = {}
        self._begun: set[int] = set()

    def begin(self) -> None:
        """Begins with what an earlier process left; again for knowledge bases that can be used only now."""
        for base in self._runtime.store.knowledge_bases():
            if base.number not in self._begun and not self._runtime.problem_of(base):
                self._begun.add(base.number)
                self.look_at(base)

    async def stop(self) -> None:
        """Leaves the rest to the next process, after the batch at hand; `draining` is set by then."""
        await asyncio.gather(*(one.task for one in self._backlogs.values() if one.task is not None))

    def look_at(self, base: KnowledgeBase) -> None:
        """There may be documents without memories in `base`."""
        self._backlog(base).look()

    def progress(self, base: KnowledgeBase) -> Progress:
        """Of one knowledge base, since this process started."""
        return self._backlog(base).progress

    async def complete(
        self, base: KnowledgeBase, query: Query, retrieved: Retrieved, remaining_s: float | None
    ) -> Retrieved:
        """The retrieved with the memories that were not written yet, less the hits whose memory comes too late.

        remaining_s: until the request's deadline, None without one.
        """
        started, settings, backlog = time.perf_counter_ns(), self._runtime.settings, self._backlog(base)
        futures = {
            hit.memory_id: backlog.ask(hit)
            for hits in retrieved.hits
            for hit in hits
            if retrieved.payloads.get(hit.memory_id) == b""
        }
        patience_s = min(settings.cold_wait_s, 0.8 * (remaining_s or settings.default_deadline_s))
        await asyncio.wait(futures.values(), timeout=patience_s)
        found = {id: future.result() if future.done() else None for id, future in futures.items()}
        there = {id: reference for id, reference in found.items() if reference is not None}
        payloads = {memory_id: payload for memory_id, payload in retrieved.payloads.items() if payload}
        payloads |= {r.memory_id: r.payload for r in there.values() if r.memory_id not in query.held_ids}
        hits = [
            [_finished(hit, there) for hit in hits if hit.memory_id in there or hit.memory_id not in futures]
            for hits in retrieved.hits
        ]
        waited_us = (time.perf_counter_ns() - started) // 1000
        return replace(retrieved, hits=hits, payloads=payloads, fetch_us=retrieved.fetch_us + waited_us)

    def _backlog(self, base: KnowledgeBase) -> _Backlog:
        return self._backlogs.setdefault(base.number, _Backlog(base, self._runtime))


def _finished(hit: Found, there: dict[int, NewReference]) -> Found:
    reference = there.get(hit.memory_id)
    return hit if reference is None else hit._replace(memory_id=reference.memory_id, crc32c=reference.crc32c)


class _Backlog:
    """One knowledge base's documents without memories. Its task runs while there is something to write."""

    def __init__(self, base: KnowledgeBase, runtime: Runtime) -> None:
        self.progress = Progress()
        self.task: asyncio.Task[None] | None = None
        self._base = base
        self._runtime = runtime
        self._requested: dict[str, Requested] = {}  # by document
        self._wanted = asyncio.Event()  # a retrieval waits
        self._open: dict[str, _Opened] = {}
        self._keys: deque[str] = deque()
        self._more = False  # there may be further documents
        self._refused: set[tuple[str, bytes]] = set()

    def ask(self, hit: Found) -> asyncio.Future[NewReference | None]:
        """The memory of a hit, which is written before those that no request waits for."""
        futures = self._requested.setdefault(hit.document_key, {})
        if hit.memory_id not in futures:
            futures[hit.memory_id] = asyncio.get_running_loop().create_future()
            self._answer(hit.document_key)
            self._wanted.set()
            self._wake()
        return futures[hit.memory_id]

    def look(self) -> None:
        """There may be documents that no request waits for."""
        if self._runtime.settings.cold_background:
            self._more = True
            self._wake()

    def _wake(self) -> None:
        if self.task is None and not self._runtime.draining.is_set():
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        pause_s, draining = 0.0, self._runtime.draining
        while not draining.is_set() and (self._requested or self._open or self._keys or self._more):
            try:
                await self._write(await self._next_chunks())
                await self._store_finished()
                if pause_s:
                    pause_s, self.progress = 0.0, self.progress._replace(problem="")
            except KnowledgeBaseNotFound:  # it was dropped
                self._start_over(more=False)
            except Exception as error:  # of the store
                pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                problem = str(error) if isinstance(error, Memory3Error) else "the store failed"
                self.progress = self.progress._replace(problem=problem)
                logger().error(
                    "late_memories_not_written", knowledge_base=self._base.name, again_in_s=pause_s, exc_info=error
                )
                self._start_over(more=self._runtime.settings.cold_background)
                await self._pause(pause_s)
        self._start_over(more=False)
        self.task = None

    async def _pause(self, pause_s: float) -> None:
        """Ends early when the service stops, or when a retrieval waits and the shortest pause is over."""
        self._wanted.clear()
        draining = self._runtime.draining
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(draining.wait(), min(pause_s, _FIRST_PAUSE_S))
        waiting = [asyncio.ensure_future(one.wait()) for one in (draining, self._wanted)]
        await asyncio.wait(waiting, timeout=max(0.0, pause_s - _FIRST_PAUSE_S), return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()

    def _start_over(self, *, more: bool) -> None:
        self._open.clear()
        for key, futures in list(self._requested.items()):
            self._let_go(key, list(futures))
        self._keys.clear()
        self._more = more

    async def _next_chunks(self) -> list[tuple[str, int]]:
        """References to write next: those that are waited for alone, otherwise a few; none at the end."""
        for key in list(self._requested):
            await self._open_requested(key)
        chunks = [
            (key, self._open[key].chunks[memory_id])
            for key, futures in self._requested.items()
            for memory_id, future in futures.items()
            if key in self._open and memory_id in self._open[key].chunks and not future.done()
        ]
        if not chunks:
            chunks = [(key, chunk) for key, opened in self._open.items() for chunk in opened.document.missing()]
            while len(chunks) < _REFERENCES_AT_ONCE and (following := await self._open_next()) is not None:
                chunks += [(following.key, chunk) for chunk in following.missing()]
        return chunks[: min(_REFERENCES_AT_ONCE, self._runtime.slice_size())]

    async def _open_requested(self, key: str) -> None:
        """Opens the stored version of a document; retrievals that found another one get nothing."""
        before, opened = list(self._requested[key]), self._open.get(key)
        if opened is None or not opened.chunks.keys() >= set(before):
            opened = await self._opened(key)
            self._let_go(key, [one for one in before if opened is None or one not in opened.chunks])

    async def _open_next(self) -> PendingDocument | None:
        """The next document that no request waits for; None if there is none."""
        if not self._keys and self._more:
            self._more = False
            keys = await self._runtime.run("read", self._runtime.store.unwritten, self._base, _PAGE_KEYS)
            for start in range(0, len(keys), _SHUFFLED_KEYS):  # the most read come first
                part = keys[start : start + _SHUFFLED_KEYS]
                random.shuffle(part)  # other pods write what is left too: seldom the same document at once
                self._keys.extend(part)
        while self._keys:
            key = self._keys.popleft()
            if key not in self._open and (opened := await self._opened(key)):
                self._more = self._runtime.settings.cold_background
                return opened.document
        return None

    async def _opened(self, key: str) -> _Opened | None:
        """Opens the stored version; None where there is none of this key, its memories are there, or cannot be made."""
        try:
            stored = await self._runtime.run("read", self._runtime.store.document, self._base, key)
        except DocumentNotFound:
            stored = None
        if stored is None or stored.written or (key, stored.content_hash) in self._refused:
            self._open.pop(key, None)
            return None
        opened = self._open.get(key)
        if opened is None or opened.document.content_hash != stored.content_hash:
            document = PendingDocument(key, stored.title, stored.metadata, stored.content_hash)
            document.take([text for _, text in stored.references])
            chunks = {memory_id: chunk for chunk, (memory_id, _) in enumerate(stored.references)}
            opened = self._open[key] = _Opened(document, chunks)
        return opened

    async def _write(self, chunks: Sequence[tuple[str, int]]) -> None:
        """Makes the memories of chunks of open documents; one that fails alone is refused with its document."""
        if not chunks:
            return
        texts, encoder = [self._open[key].document.texts[chunk] for key, chunk in chunks], self._runtime.encoder
        try:
            size = 1 if self._requested else _BACKGROUND_SIZE
            encoded = await self._runtime.encode(size, encoder.encode, texts)
            encoded = checked(encoded, len(texts), encoder.description.identity.dimension)
        except Exception as error:
            if len(chunks) > 1:  # one of them is to blame
                for one in chunks:
                    await self._write([one] if one[0] in self._open else [])
                return
            self._refuse(chunks[0][0], error)
            self._close(chunks[0][0])
            return
        for (key, chunk), vector, payload in zip(chunks, encoded.vectors, encoded.payloads, strict=True):
            self._open[key].document.fill(chunk, vector, payload)
            self._answer(key)

    def _refuse(self, key: str, error: Exception) -> None:
        """This version of an open document stays without memories."""
        logger().error("late_memory_failed", document_key=key, exc_info=error)
        self._refused.add((key, self._open[key].document.content_hash))
        problem = f"document {shortened(key)!r}: its memories could not be written"
        self.progress = self.progress._replace(failed=len(self._refused), problem=problem)

    async def _store_finished(self) -> None:
        """Replace documents whose memories are complete; waiting requests are answered before."""
        whole = [opened.document for opened in self._open.values() if not opened.document.missing()]
        if whole:
            written = await self._runtime.run("write", self._replace, whole)
            self.progress = self.progress._replace(written=self.progress.written + written)
            for document in whole:
                self._close(document.key)

    def _replace(self, finished: Sequence[PendingDocument]) -> int:
        """Writes them, each only if its version is still the one that was read."""
        documents = [replace(document.finished(), replaces=document.content_hash) for document in finished]
        with self._runtime.guard.writing(self._base, documents) as admission:
            written = self._runtime.store.write(self._base, admission.documents)
        for key, error in admission.refused.items():
            self._refuse(key, error)
        return sum(one.replaced for one in written)

    def _answer(self, key: str) -> None:
        """Gives the memories of an open document that are there to the retrievals that wait for them."""
        if (opened := self._open.get(key)) is not None:
            for memory_id, future in self._requested.get(key, {}).items():
                chunk = opened.chunks.get(memory_id)  # None for a hit of another version
                if chunk is not None and not future.done() and (reference := opened.document.reference(chunk)):
                    future.set_result(reference)

    def _close(self, key: str) -> None:
        """Ends with an open version; who still waits for one of its memories gets none."""
        self._let_go(key, self._open.pop(key).chunks)

    def _let_go(self, key: str, memory_ids: Iterable[int]) -> None:
        """Answers who still waits for these memories of a document with none."""
        futures = self._requested.get(key, {})
        for future in [futures.pop(one) for one in memory_ids if one in futures]:
            if not future.done():
                future.set_result(None)
        if not futures:
            self._requested.pop(key, None)
