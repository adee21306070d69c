"""The local store: `file:///path`, for one machine at the highest speed."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from memory_model.errors import Memory3Error
from memory_service.errors import (
    DocumentNotFound,
    KnowledgeBaseDamaged,
    KnowledgeBaseExists,
    KnowledgeBaseNotFound,
    StoreUnavailable,
)
from memory_service.ops.logs import logger
from memory_service.stores import (
    KnowledgeBase,
    NewDocument,
    Query,
    Retrieved,
    Revision,
    Statistics,
    Store,
    StoredDocument,
    StoredMemory,
    StoredVersion,
    Written,
    problem_text,
    require_sound,
    unknown_knowledge_base,
)
from memory_service.stores.folder_lock import FolderLock
from memory_service.stores.identity import WriterIdentity
from memory_service.stores.local.current import mark_damaged
from memory_service.stores.local.knowledge_base import LocalKnowledgeBase
from memory_service.stores.local.register import Register
from memory_service.stores.local.rules import LocalRules
from memory_service.stores.word_ranking import WordRanking

_IDLE_S = 2.0
_RETRY_S = 60.0


class LocalStore(Store):
    """See Store for the contract. One process writes to a path, any number of others may read it with `read_only`.

    What the one acknowledged, the others find at once. A thread of its own grows indexes and compacts.
    """

    searches_together = True

    def __init__(
        self,
        path: Path,
        rules: LocalRules | None = None,
        *,
        read_only: bool = False,
        word_cache_bytes: int = 64 << 20,
    ) -> None:
        """Opens every knowledge base and checks it; raises StoreUnavailable when the path cannot be used.

        read_only: methods that write raise StoreUnavailable; checksums are left to the process that writes, but each
        payload is compared with its own when it is first read.
        """
        self.path = path
        self._rules = rules or LocalRules()
        self._lock = None if read_only else FolderLock(path)
        self._change = threading.RLock()
        self._ranking = WordRanking(word_cache_bytes)
        self._open: dict[int, LocalKnowledgeBase] = {}
        self._wake = threading.Event()
        self._closing = False
        self._failed: dict[int, float] = {}
        try:
            self._register = Register(path, writable=not read_only)
            for base in list(self._register.bases.values()):
                self._open_base(base)
            if not read_only:
                self._remove_leftovers()
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        self._thread = threading.Thread(target=self._maintain, name="local-store", daemon=True)
        self._thread.start()
        self._wake.set()

    def ping(self) -> None:
        """See Store: the folder is there."""
        if self._lock is not None:
            self._lock.require()

    def _folder(self, number: int) -> Path:
        return self.path / f"kb-{number:06d}"

    def _open_base(self, base: KnowledgeBase) -> None:
        opening = LocalKnowledgeBase.open if self._lock is not None else LocalKnowledgeBase.open_reading
        try:
            opened = opening(self._folder(base.number), base.identity.dimension, self._rules)
        except Memory3Error as error:
            self._set_problem(base, [str(error)])
        else:
            self._open[base.number] = opened
            if self._lock is not None:
                mark_damaged(self._folder(base.number), "")

    def _set_problem(self, base: KnowledgeBase, problems: list[str]) -> None:
        if self._lock is not None:
            mark_damaged(self._folder(base.number), "; ".join(problems))
        self._register.bases[base.name] = replace(base, problem=problem_text(problems))

    def _remove_leftovers(self) -> None:
        """Folders of knowledge bases that were dropped, or not yet created, when a process died."""
        living = {self._folder(base.number) for base in self._register.bases.values()}
        for folder in self.path.glob("kb-*"):
            if folder not in living:
                shutil.rmtree(folder, ignore_errors=True)

    def _follow(self) -> None:
        """Where another process writes: takes notice of knowledge bases that it made or dropped."""
        if self._lock is not None:
            return
        with self._change:
            if not self._register.follow():
                return
            living = {base.number: base for base in self._register.bases.values()}
            for number in [n for n in self._open if n not in living]:
                self._open.pop(number).close()
            for number, base in living.items():
                if number not in self._open:
                    self._open_base(base)

    def _require_writable(self) -> None:
        if self._lock is None:
            raise StoreUnavailable(
                f"this process has the store at {self.path} for reading only: send writes to the one that writes"
            )

    # Knowledge bases

    def knowledge_bases(self) -> list[KnowledgeBase]:
        """See Store."""
        with self._change:
            self._follow()
            return [self._register.bases[name] for name in sorted(self._register.bases)]

    def knowledge_base(self, name: str) -> KnowledgeBase:
        """See Store."""
        self._follow()
        base = self._register.bases.get(name)
        if base is None:
            raise unknown_knowledge_base(name, list(self._register.bases))
        return base

    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        """See Store."""
        self._require_writable()
        with self._change:
            if name in self._register.bases:
                raise KnowledgeBaseExists(
                    f"a knowledge base called {name!r} is there already", knowledge_base=name
                )
            created_at = datetime.fromtimestamp(int(time.time() * 1000) / 1000, timezone.utc)
            base = KnowledgeBase(self._register.next_number, name, description, identity, created_at)
            folder = self._folder(base.number)
            shutil.rmtree(folder, ignore_errors=True)  # of a creation that did not end
            opened = LocalKnowledgeBase.create(folder, identity.dimension, self._rules)
            try:
                self._register.add(base)
            except BaseException:
                opened.drop()
                raise
            self._open[base.number] = opened
            return base

    def drop(self, base: KnowledgeBase) -> None:
        """See Store."""
        self._require_writable()
        with self._change:
            self._register.remove(base.name)  # from here on the folder is nobody's
            opened = self._open.pop(base.number, None)
            if opened is not None:
                opened.drop()
            shutil.rmtree(self._folder(base.number), ignore_errors=True)

    def _of(self, base: KnowledgeBase) -> LocalKnowledgeBase:
        """The open knowledge base; raises KnowledgeBaseDamaged, or KnowledgeBaseNotFound for one that is gone."""
        self._follow()
        current = self._register.bases.get(base.name)
        if current is None or current.number != base.number:
            message = f"knowledge base {base.name!r} was deleted meanwhile"
            raise KnowledgeBaseNotFound(message, knowledge_base=base.name)
        require_sound(current)
        return self._open[base.number]

    @contextlib.contextmanager
    def _named(self, base: KnowledgeBase) -> Iterator[LocalKnowledgeBase]:
        """Damage that is found while reading says whose it is."""
        try:
            yield self._of(base)
        except KnowledgeBaseDamaged as error:
            if "knowledge_base" in error.details:
                raise
            message = f"knowledge base {base.name!r} is damaged: {error}"
            raise KnowledgeBaseDamaged(message, knowledge_base=base.name) from error

    # Reading

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        """See Store."""
        return self.retrieve_together(base, [query])[0]

    def retrieve_together(self, base: KnowledgeBase, queries: Sequence[Query]) -> list[Retrieved]:
        """See Store: one search for all of them."""
        try:
            return self._of(base).retrieve(queries, base.number, self._ranking)
        except KnowledgeBaseDamaged:  # the usual way is not to cost a generator
            with self._named(base):
                raise

    def retrieve_at_once(self, base: KnowledgeBase, query: Query) -> Retrieved | None:
        """See Store: what was searched, named and compared before, in the process that writes."""
        if self._lock is None:  # another process's batches are looked for on the disk
            return None
        try:
            return self._of(base).retrieve_at_once(query)
        except KnowledgeBaseDamaged:
            with self._named(base):
                raise

    def versions(self, base: KnowledgeBase, keys: Sequence[str]) -> dict[str, StoredVersion]:
        """See Store."""
        with self._named(base) as opened:
            return {
                key: StoredVersion(document.content_hash, tuple(i for i, _ in opened.references(document)))
                for key, document in opened.living(keys).items()
            }

    def document(self, base: KnowledgeBase, key: str) -> StoredDocument:
        """See Store."""
        with self._named(base) as opened:
            document = opened.living([key]).get(key)
            if document is None:
                raise DocumentNotFound(
                    f"knowledge base {base.name!r} has no document {key[:200]!r}", document_key=key
                )
            stored_at = datetime.fromtimestamp(document.stored_ms / 1000, timezone.utc)
            return StoredDocument(
                key, document.title, document.metadata, document.content_hash, stored_at, opened.references(document)
            )  # fmt: skip

    def revision(self, base: KnowledgeBase) -> Revision:
        """See Store."""
        with self._named(base) as opened:
            totals = opened.totals
            return Revision(totals.batch, totals.memories, totals.digest)

    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        """See Store."""
        with self._named(base) as opened:
            return opened.memories(after_id, count)

    def keys(self, base: KnowledgeBase, prefix: str, *, after_key: str | None, count: int) -> list[str]:
        """See Store."""
        with self._named(base) as opened:
            return opened.keys(prefix, after_key or "", count)

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        """See Store."""
        with self._named(base) as opened:
            return opened.unwritten(count)

    def statistics(self, base: KnowledgeBase) -> Statistics:
        """See Store."""
        with self._named(base) as opened:
            return Statistics(*opened.sums())

    def check(self, base: KnowledgeBase, *, deep: bool = False) -> list[str]:
        """See Store."""
        current = self.knowledge_base(base.name)
        if current.problem:
            return [current.problem]
        return self._of(base).problems(deep=deep)

    # Writing

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store."""
        self._require_writable()
        with self._named(base) as opened:
            written = opened.write(documents)
        self._wake.set()
        return written

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        self._require_writable()
        with self._named(base) as opened:
            counts = opened.delete(keys)
        self._wake.set()
        return counts

    def compact(self, base: KnowledgeBase) -> None:
        """Takes the place of deleted and replaced documents back; the store does it by itself in time."""
        self._require_writable()
        with self._named(base) as opened:
            opened.compact()

    # In the background

    def _maintain(self) -> None:
        while not self._closing:
            idle = not self._wake.wait(_IDLE_S)
            self._wake.clear()
            for number, opened in list(self._open.items()):
                base = next((b for b in list(self._register.bases.values()) if b.number == number), None)
                if base is None or base.problem or self._closing or self._rests(number):
                    continue
                try:
                    problems = opened.maintain() if opened.needs_maintenance() else []
                    if idle:
                        opened.settle()
                except Exception as error:  # reading and writing go on; it is tried again
                    self._failed[number] = time.monotonic()
                    logger().error("maintenance_failed", knowledge_base=base.name, problem=str(error))
                    continue
                if problems:
                    self._set_problem(base, problems)
                    logger().error("knowledge_base_refused", knowledge_base=base.name, problem=problems[0])

    def _rests(self, number: int) -> bool:
        """Whether maintenance failed a moment ago: a full disk is not free a second later."""
        return time.monotonic() - self._failed.get(number, -_RETRY_S) < _RETRY_S

    def wait_until_maintained(self, timeout_s: float = 600.0) -> bool:
        """Waits until indexes cover their rows and nothing is to be compacted; whether that came in time."""
        deadline = time.monotonic() + timeout_s
        while any(opened.needs_maintenance() for opened in list(self._open.values())):
            if time.monotonic() > deadline:
                return False
            self._wake.set()
            time.sleep(0.02)
        return True

    def close(self) -> None:
        """See Store."""
        self._closing = True
        with self._change:
            for opened in self._open.values():
                opened.close()
            self._open.clear()
        self._wake.set()
        self._thread.join(60)
        if self._lock is not None:
            self._lock.release()
