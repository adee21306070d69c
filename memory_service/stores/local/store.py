"""The local store: `file:///path`, for one machine. A folder for each knowledge base, named for its number and name."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote, unquote

from memory3.errors import Memory3Error
from memory_service.errors import KnowledgeBaseDamaged, StoreUnavailable
from memory_service.stores.address import FolderLock
from memory_service.stores.filters import Filter
from memory_service.stores.local.disk import disk_errors, sync_folder
from memory_service.stores.local.knowledge_base import LocalKnowledgeBase
from memory_service.stores.local.rows import Transaction
from memory_service.stores.store import (
    ALL_REFERENCES,
    KnowledgeBase,
    NewDocument,
    Query,
    ReadReference,
    Retrieved,
    Revision,
    Snapshot,
    SnapshotPage,
    Statistics,
    Store,
    StoredDocument,
    StoredMemory,
    StoredVersion,
    UsageGroup,
    WriterIdentity,
    Written,
    damage_text,
    deleted_meanwhile,
    name_taken,
    require_sound,
    unknown_document,
    unknown_knowledge_base,
)
from memory_service.telemetry.logs import logger

_FOLDER = re.compile(r"kb-(\d{6,})-(.+)")


class LocalStore(Store):
    """See Store for the contract. One process at a path."""

    def __init__(self, path: Path, retry_s: float = 5.0) -> None:
        """Opens every knowledge base and checks it; raises StoreUnavailable when the path cannot be used.

        retry_s: interval at which those that could not be opened are opened again.
        """
        self.path = path
        self._retry_s = retry_s
        self._closing = threading.Event()
        self._opener = threading.Thread(target=self._open_again, name="store-opener", daemon=True)
        self._change = threading.RLock()
        self._bases: dict[str, KnowledgeBase] = {}
        self._last_number = 0
        self._open: dict[int, LocalKnowledgeBase] = {}
        self._lock = FolderLock(path)
        try:
            with disk_errors("opening the store"):
                self._begin()
        except BaseException:
            self._lock.release()
            raise
        if self._unavailable():
            self._opener.start()

    def ping(self) -> None:
        """See Store: the folder is there."""
        self._lock.require()

    # Knowledge bases

    def _begin(self) -> None:
        for left in self.path.glob(".kb-*"):  # of a creation or deletion that a process did not end
            _remove(left)
        found: dict[int, tuple[str, Path]] = {}
        for folder in sorted(self.path.glob("kb-*")):
            if (named := _FOLDER.fullmatch(folder.name)) is None:
                raise StoreUnavailable(
                    f"the store at {self.path} was written by another release ({folder.name}): restore a backup made"
                    " by that one, or name an empty folder and ingest again"
                )
            number, name = int(named[1]), unquote(named[2])
            if twin := [one for n, (other, one) in found.items() if n == number or other == name]:
                raise StoreUnavailable(
                    f"{folder.name} has the number or the name of {twin[0].name}, as a copy of it would: move one of"
                    f" them out of {self.path}"
                )
            found[number] = name, folder
        for number, (name, folder) in sorted(found.items()):
            self._bases[name], self._last_number = self._opened(number, name, folder), number

    def _opened(self, number: int, name: str, folder: Path) -> KnowledgeBase:
        """Opens a knowledge base of this number and name; one that cannot be is damaged or unavailable."""
        try:
            opened = LocalKnowledgeBase(folder)
        except Memory3Error as error:
            damaged, unknown = isinstance(error, KnowledgeBaseDamaged), WriterIdentity("", "", "", "", 0)
            problem = damage_text([str(error)]) if damaged else f"{error}; it is opened again by itself"
            return KnowledgeBase(number, name, "", unknown, datetime.fromtimestamp(0, timezone.utc), problem, damaged)
        opened.base = replace(opened.base, number=number, name=name)  # a copied folder is a knowledge base of its own
        self._open[number] = opened
        return opened.base

    def _unavailable(self) -> list[KnowledgeBase]:
        return [base for base in self._bases.values() if base.problem and not base.damaged]

    def _open_again(self) -> None:
        """Opens those that are unavailable, until all are open."""
        while (left := self._unavailable()) and not self._closing.wait(self._retry_s):
            for base in left:
                with self._change:
                    if self._bases.get(base.name) != base or self._closing.is_set():
                        continue
                    again = self._opened(base.number, base.name, self._folder(base))
                    self._bases = {**self._bases, base.name: again}
                if not again.problem:
                    logger().info("knowledge_base_opened", knowledge_base=base.name)

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
            self._last_number += 1
            base = KnowledgeBase(self._last_number, name, description, identity, now)
            try:
                self._open[base.number] = LocalKnowledgeBase.create(self._folder(base), base)
            except BaseException:
                shutil.rmtree(self._folder(base), ignore_errors=True)  # its creation was never reported
                raise
            self._bases = {**self._bases, name: base}
            return base

    def adopt(self, base: KnowledgeBase, identity: WriterIdentity) -> KnowledgeBase:
        with self._of(base) as opened, self._change:
            adopted = opened.adopt(identity)
            self._bases = {**self._bases, base.name: adopted}
            return adopted

    def drop(self, base: KnowledgeBase) -> None:
        gone = self.path / f".kb-{base.number:06d}"
        with self._change, disk_errors("deleting the knowledge base"):
            with contextlib.suppress(FileNotFoundError):
                self._folder(base).rename(gone)
            self._bases = {name: one for name, one in self._bases.items() if one.number != base.number}
            if (opened := self._open.pop(base.number, None)) is not None:
                opened.close(keep=False)
            sync_folder(self.path)
        _remove(gone)

    @contextlib.contextmanager
    def _of(self, base: KnowledgeBase) -> Iterator[LocalKnowledgeBase]:
        """The open knowledge base; damage that is found meanwhile says whose it is.

        What fails because its files were deleted meanwhile is no fault of the disk.
        """
        current, opened = self._bases.get(base.name), self._open.get(base.number)
        if current is not None and current.number == base.number:
            require_sound(current)
        if opened is None:
            raise deleted_meanwhile(base)
        try:
            with disk_errors("reading"):
                yield opened
        except (KnowledgeBaseDamaged, StoreUnavailable) as error:
            with self._change:  # the files go first, then the name
                numbers = [one.number for one in self._bases.values()]
            if base.number not in numbers:
                raise deleted_meanwhile(base) from error
            if not isinstance(error, KnowledgeBaseDamaged):
                raise
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
                    one.content_hash,
                    tuple(memory_id for memory_id, _ in data.texts(one)),
                    bool(one.written),
                    one.text_bytes + one.payload_bytes,
                )
                for key, one in data.documents(keys).items()
            }

    def document(self, base: KnowledgeBase, key: str, *, first: int = 0, count: int = ALL_REFERENCES) -> StoredDocument:
        with self._reading(base) as data:
            if (found := data.documents([key]).get(key)) is None:
                raise unknown_document(base, key)
            return found.stored(data.texts(found, first, count))

    def revision(self, base: KnowledgeBase) -> Revision:
        with self._reading(base) as data:
            return data.revision()

    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        with self._reading(base) as data:
            return data.memories(after_id, count)

    @contextlib.contextmanager
    def snapshot(self, base: KnowledgeBase, *, first_only: bool = False) -> Iterator[Snapshot]:
        """See Store. A read transaction, for whose time the journal of writes grows."""

        def pages(data: Transaction) -> Iterator[SnapshotPage]:
            with disk_errors("reading"):
                yield from data.snapshot(first_only)

        with self._reading(base) as data:
            yield Snapshot(data.revision(), data.sums()[0], pages(data))

    def keys(
        self, base: KnowledgeBase, prefix: str, *, after_key: str | None, count: int, filter: Filter | None = None
    ) -> list[str]:
        """See Store; no key is empty, so '' begins at the first."""
        with self._reading(base) as data:
            return data.keys(prefix, after_key or "", count, filter)

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        with self._reading(base) as data:
            return data.unwritten(count)

    def add_reads(self, base: KnowledgeBase, reads: Mapping[tuple[str, int], int]) -> None:
        with self._of(base) as opened:
            opened.add_reads(reads)

    def most_read(self, base: KnowledgeBase, count: int) -> list[ReadReference]:
        with self._reading(base) as data:
            return data.most_read(count)

    def usage(self, base: KnowledgeBase, bounds: Sequence[int]) -> list[UsageGroup]:
        with self._reading(base) as data:
            return data.usage(bounds)

    def statistics(self, base: KnowledgeBase) -> Statistics:
        with self._of(base) as opened, opened.reading() as (data, _):
            documents, references, payload_bytes, text_bytes, unwritten, unwritten_references = data.sums()
            reindexed, left = opened.reindexing(references)
            stored_bytes = 0
            for path in self._folder(base).iterdir():
                with contextlib.suppress(FileNotFoundError):  # an index that is being saved gets its name meanwhile
                    stored_bytes += path.stat().st_blocks * 512
        return Statistics(
            documents,
            references,
            payload_bytes,
            text_bytes,
            stored_bytes,
            unwritten,
            unwritten_references,
            reindexed,
            left,
        )

    # Writing

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        with self._of(base) as opened:
            return opened.write(documents)

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        with self._of(base) as opened:
            return opened.delete(keys)

    def close(self) -> None:
        self._closing.set()
        with self._change:
            for opened in self._open.values():
                opened.close()
            self._open.clear()
        self._lock.release()


def _remove(folder: Path) -> None:
    """Removes a knowledge base's folder; one that was moved to another disk is a link here, which goes with it."""
    shutil.rmtree(folder.resolve(), ignore_errors=True)
    if folder.is_symlink():
        folder.unlink()
