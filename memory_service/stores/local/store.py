"""The local store: `file:///path`, for one machine. A folder for each knowledge base, named for its number and name."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote, unquote

from memory3.errors import Memory3Error
from memory_service.errors import KnowledgeBaseDamaged, StoreUnavailable
from memory_service.stores.address import FolderLock
from memory_service.stores.filters import Filter
from memory_service.stores.local.database import Transaction, disk_errors, sync_folder
from memory_service.stores.local.knowledge_base import LocalKnowledgeBase
from memory_service.stores.store import (
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
    WriterIdentity,
    Written,
    deleted_meanwhile,
    name_taken,
    problem_text,
    require_sound,
    unknown_document,
    unknown_knowledge_base,
)

_FOLDER = re.compile(r"kb-(\d+)-(.+)")


class LocalStore(Store):
    """See Store for the contract. One process at a path."""

    def __init__(self, path: Path) -> None:
        """Opens every knowledge base and checks it; raises StoreUnavailable when the path cannot be used."""
        self.path = path
        self._change = threading.RLock()
        self._bases: dict[str, KnowledgeBase] = {}
        self._last_number = 0
        self._open: dict[int, LocalKnowledgeBase] = {}
        self._lock = FolderLock(path)
        try:
            self._begin()
        except BaseException:
            self._lock.release()
            raise

    def ping(self) -> None:
        """See Store: the folder is there."""
        self._lock.require()

    # Knowledge bases

    def _begin(self) -> None:
        for left in self.path.glob(".kb-*"):  # of a creation or deletion that a process did not end
            shutil.rmtree(left, ignore_errors=True)
        for folder in sorted(self.path.glob("kb-*")):
            if (named := _FOLDER.fullmatch(folder.name)) is None:
                raise StoreUnavailable(
                    f"the store at {self.path} was written by another release ({folder.name}): restore a backup made"
                    " by that one, or name an empty folder and ingest again"
                )
            number, name = int(named[1]), unquote(named[2])
            try:
                self._open[number] = opened = LocalKnowledgeBase(folder)
                base = opened.base
            except Memory3Error as error:
                made_at = datetime.fromtimestamp(folder.stat().st_mtime, timezone.utc)
                unknown, problem = WriterIdentity("", "", "", "", 0), problem_text([str(error)])
                base = KnowledgeBase(number, name, "", unknown, made_at, problem)
            self._bases[name], self._last_number = base, number

    def _folder(self, base: KnowledgeBase) -> Path:
        return self.path / f"kb-{base.number:06d}-{quote(base.name, safe='')}"

    def knowledge_bases(self) -> list[KnowledgeBase]:
        return [base for _, base in sorted(self._bases.items())]

    def knowledge_base(self, name: str) -> KnowledgeBase:
        bases = self._bases
        if name not in bases:
            raise unknown_knowledge_base(name, list(bases))
        return bases[name]

    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        with self._change:
            if name in self._bases:
                raise name_taken(name)
            now = datetime.now(timezone.utc)
            base = KnowledgeBase(self._last_number + 1, name, description, identity, now)
            self._open[base.number] = LocalKnowledgeBase.create(self._folder(base), base)
            self._last_number = base.number
            self._bases = {**self._bases, name: base}
            return base

    def drop(self, base: KnowledgeBase) -> None:
        with self._change:
            if (opened := self._open.pop(base.number, None)) is not None:
                opened.close(keep=False)
            self._bases = {name: one for name, one in self._bases.items() if one.number != base.number}
            gone = self.path / f".kb-{base.number:06d}"
            with disk_errors("deleting the knowledge base"), contextlib.suppress(FileNotFoundError):
                self._folder(base).rename(gone)
                sync_folder(self.path)
        shutil.rmtree(gone, ignore_errors=True)

    @contextlib.contextmanager
    def _of(self, base: KnowledgeBase) -> Iterator[LocalKnowledgeBase]:
        """The open knowledge base; damage that is found meanwhile says whose it is."""
        current, opened = self._bases.get(base.name), self._open.get(base.number)
        if current is not None and current.number == base.number:
            require_sound(current)
        if opened is None:
            raise deleted_meanwhile(base)
        try:
            yield opened
        except KnowledgeBaseDamaged as error:
            message = f"knowledge base {base.name!r} is damaged: {error}"
            raise KnowledgeBaseDamaged(message, knowledge_base=base.name) from error

    # Reading

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        with self._of(base) as opened:
            return opened.retrieve(query)

    @contextlib.contextmanager
    def _reading(self, base: KnowledgeBase) -> Iterator[Transaction]:
        with self._of(base) as opened, opened.reading() as (data, _):
            yield data

    def versions(self, base: KnowledgeBase, keys: Sequence[str]) -> dict[str, StoredVersion]:
        with self._reading(base) as data:
            return {
                key: StoredVersion(
                    one.content_hash, tuple(memory_id for memory_id, _ in data.texts(one)), bool(one.written)
                )
                for key, one in data.documents(keys).items()
            }

    def document(self, base: KnowledgeBase, key: str) -> StoredDocument:
        with self._reading(base) as data:
            if (found := data.documents([key]).get(key)) is None:
                raise unknown_document(base, key)
            texts, metadata = data.texts(found), json.loads(found.metadata)
        stored_at = datetime.fromtimestamp(found.stored_ms / 1000, timezone.utc)
        return StoredDocument(key, found.title, metadata, found.content_hash, stored_at, texts, bool(found.written))

    def revision(self, base: KnowledgeBase) -> Revision:
        with self._reading(base) as data:
            return data.revision()

    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        with self._reading(base) as data:
            return data.memories(after_id, count)

    def keys(
        self, base: KnowledgeBase, prefix: str, *, after_key: str | None, count: int, filter: Filter | None = None
    ) -> list[str]:
        """See Store; no key is empty, so '' begins at the first."""
        with self._reading(base) as data:
            return data.keys(prefix, after_key or "", count, filter)

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        with self._reading(base) as data:
            return data.unwritten(count)

    def statistics(self, base: KnowledgeBase) -> Statistics:
        with self._of(base) as opened, opened.reading() as (data, _):
            documents, references, payload_bytes, text_bytes, unwritten = data.sums()
            reindexed, left = opened.reindexing(references)
            files = [path.stat() for path in self._folder(base).iterdir() if path.is_file()]
        stored_bytes = sum(file.st_blocks * 512 for file in files)
        return Statistics(documents, references, payload_bytes, text_bytes, stored_bytes, unwritten, reindexed, left)

    # Writing

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        with self._of(base) as opened:
            return opened.write(documents)

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        with self._of(base) as opened:
            return opened.delete(keys)

    def close(self) -> None:
        with self._change:
            for opened in self._open.values():
                opened.close()
            self._open.clear()
        self._lock.release()
