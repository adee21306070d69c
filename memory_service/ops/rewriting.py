"""Writes the memories of an earlier model again with ours, the most read documents first, while they are translated.

scan       documents whose payloads are another model's, and their reads
rewrite    a few at a time, each only if its version is still the one that was read
adopt      once none is left, the knowledge base is recorded as our model's
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memory3.errors import Memory3Error, shortened
from memory_service.encoder import checked
from memory_service.errors import DocumentNotFound, KnowledgeBaseNotFound, retryable
from memory_service.ops.reads import reads_by_document
from memory_service.ops.translating import TranslatingStore
from memory_service.service import Runtime
from memory_service.stores.store import KnowledgeBase
from memory_service.telemetry.logs import logger
from memory_service.write.document import PendingDocument

_BACKGROUND_SIZE = 2000
"""As a document of so many references: late memories, which a read may wait for, go first."""
_DOCUMENTS_AT_ONCE = 16
_SHUFFLED_KEYS = 64
_MOST_READ = 1 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


@dataclass(frozen=True)
class Rewritten:
    """How far a knowledge base is: documents that this process rewrote, and those left; problem: the last error."""

    done: int = 0
    left: int = 0
    failed: int = 0
    problem: str = ""


class Rewriter:
    """For one event loop. A task for each knowledge base of an earlier model."""

    def __init__(self, runtime: Runtime, store: TranslatingStore) -> None:
        self._runtime = runtime
        self._store = store
        self._progress: dict[int, Rewritten] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self) -> None:
        """Begins with what earlier models left; again for knowledge bases that can be used only now."""
        for base in self._store.knowledge_bases():
            if base.number not in self._tasks and not self._runtime.problem_of(base) and self.under_way(base):
                logger().info("memories_translated", knowledge_base=base.name)
                self._tasks[base.number] = asyncio.create_task(self._run(base))

    async def stop(self) -> None:
        """Leaves the rest to the next process, after the document at hand; `draining` is set by then."""
        await asyncio.gather(*self._tasks.values())

    def progress(self, base: KnowledgeBase) -> Rewritten:
        """Of one knowledge base, since this process started."""
        return self._progress.get(base.number, Rewritten())

    def under_way(self, base: KnowledgeBase) -> bool:
        """Whether there are memories of an earlier model, as far as the store records."""
        try:
            return self._store.earlier(base)
        except KnowledgeBaseNotFound:
            return False

    async def _run(self, base: KnowledgeBase) -> None:
        pause_s, draining = _FIRST_PAUSE_S, self._runtime.draining
        while not draining.is_set():
            try:
                if await self._rewrite_all(base):
                    return
            except KnowledgeBaseNotFound:  # it was dropped
                return
            except Exception as error:  # of the store
                self._note(base, problem=str(error) if isinstance(error, Memory3Error) else "the store failed")
                logger().error("memories_not_rewritten", knowledge_base=base.name, again_in_s=pause_s, exc_info=error)
            try:
                await asyncio.wait_for(draining.wait(), pause_s)
            except TimeoutError:
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _rewrite_all(self, base: KnowledgeBase) -> bool:
        """Whether nothing is left that can be rewritten."""
        run = self._runtime.run
        found, failed = await run("filter", self._found, base), 0
        if found is None:
            return True
        self._note(base, left=len(found))
        for start in range(0, len(found), _DOCUMENTS_AT_ONCE):
            if self._runtime.draining.is_set():
                return True
            part = found[start : start + _DOCUMENTS_AT_ONCE]
            failed += await self._rewrite_each(base, part)
            self._note(base, left=len(found) - start - len(part) + failed)
        if failed or (found and await run("filter", self._found, base) != []):
            return bool(failed)
        await run("write", self._store.adopt, base, self._runtime.encoder.description.identity)
        logger().info("knowledge_base_rewritten", knowledge_base=base.name)
        return True

    async def _rewrite_each(self, base: KnowledgeBase, part: list[tuple[str, int]]) -> int:
        """How many of these documents the model failed on; they stay translated."""
        try:
            done = await self._rewrite(base, part)
            before = self.progress(base)
            self._note(base, done=before.done + done, problem=before.problem if before.failed else "")
            return 0
        except Exception as error:
            if isinstance(error, KnowledgeBaseNotFound) or retryable(error):
                raise
            if len(part) > 1:  # one of them is to blame
                return sum([await self._rewrite_each(base, [one]) for one in part])
            key, failed = part[0][0], self.progress(base).failed + 1
            logger().error("memory_not_rewritten", document_key=key, exc_info=error)
            self._note(base, failed=failed, problem=f"document {shortened(key)!r}: its memories could not be rewritten")
            return 1

    def _note(self, base: KnowledgeBase, **changes: int | str) -> None:
        self._progress[base.number] = replace(self.progress(base), **changes)  # type: ignore[arg-type]

    def _found(self, base: KnowledgeBase) -> list[tuple[str, int]] | None:
        """Documents with another model's payloads and the id of their first memory, the most read first.

        None where the service stops meanwhile.
        """
        stored, is_own, found = self._store.stored, self._runtime.encoder.is_own, dict[str, int]()
        with stored.snapshot(base, first_only=True) as snapshot:
            for page in snapshot.pages:
                (first,) = page.memories
                if first.payload and not is_own(first.payload):
                    found[page.document.key] = first.memory_id
                if self._runtime.draining.is_set():
                    return None
        reads = reads_by_document(stored, base, _MOST_READ)
        ordered, shuffled = sorted(found, key=lambda key: -reads[key]), list[str]()
        for start in range(0, len(ordered), _SHUFFLED_KEYS):  # other pods rewrite too: seldom the same at once
            part = ordered[start : start + _SHUFFLED_KEYS]
            random.shuffle(part)
            shuffled += part
        return [(key, found[key]) for key in shuffled]

    async def _rewrite(self, base: KnowledgeBase, part: Sequence[tuple[str, int]]) -> int:
        """How many documents were rewritten here; not those where another process, or a writer, was faster."""
        runtime, encoder, documents = self._runtime, self._runtime.encoder, list[PendingDocument]()
        for key, first_id in part:
            try:
                stored = await runtime.run("read", self._store.document, base, key)
            except DocumentNotFound:
                continue
            if stored.written and stored.references[0][0] == first_id:
                document = PendingDocument(key, stored.title, stored.metadata, stored.content_hash)
                document.take([text for _, text in stored.references])
                documents.append(document)
        missing = [(document, chunk) for document in documents for chunk in document.missing()]
        while missing and not runtime.draining.is_set():
            size = runtime.slice_size()
            now, missing = missing[:size], missing[size:]
            texts = [document.texts[chunk] for document, chunk in now]
            encoded = await runtime.encode(_BACKGROUND_SIZE, encoder.encode, texts)
            encoded = checked(encoded, len(texts), encoder.description.identity.dimension)
            for (document, chunk), vector, payload in zip(now, encoded.vectors, encoded.payloads, strict=True):
                document.fill(chunk, vector, payload)
        whole = [document for document in documents if not document.missing()]
        return await runtime.run("write", self._write, base, whole) if whole else 0

    def _write(self, base: KnowledgeBase, documents: Sequence[PendingDocument]) -> int:
        """No quota is asked: it is the operator who has another model, whose memories may be larger."""
        new = [replace(one.finished(), replaces=one.content_hash, again=True) for one in documents]
        written = self._store.write(base, new)
        self._runtime.guard.forget(base)
        return sum(one.replaced for one in written)
