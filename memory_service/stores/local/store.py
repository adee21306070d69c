"""The local store: `file:///path`, for one machine. `store.json` says which knowledge bases there are."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import google_crc32c

from memory_model.errors import Memory3Error
from memory_service.errors import (
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
    unknown_document,
    unknown_knowledge_base,
)
from memory_service.stores.filters import Filter
from memory_service.stores.folder_lock import FolderLock
from memory_service.stores.identity import WriterIdentity
from memory_service.stores.local.database import disk_errors, sync_folder
from memory_service.stores.local.knowledge_base import LocalKnowledgeBase, LocalRules
from memory_service.stores.local.snapshot import Snapshot

DATA_FORMAT = 2
_REGISTER = "store.json"
_IDLE_S = 2.0
_RETRY_S = 60.0


class LocalStore(Store):
    """See Store for the contract. One process at a path; a thread of its own saves indexes and compares checksums."""

    def __init__(self, path: Path, rules: LocalRules | None = None) -> None:
        """Opens every knowledge base and checks it; raises StoreUnavailable when the path cannot be used."""
        self.path = path
        self._rules = rules or LocalRules()
        self._change = threading.RLock()
        self._bases: dict[str, KnowledgeBase] = {}
        self._next_number = 1
        self._open: dict[int, LocalKnowledgeBase] = {}
        self._wake, self._closing = threading.Event(), False
        self._failed: dict[int, float] = {}
        self._lock = FolderLock(path)
        try:
            self._begin()
        except BaseException:
            self._lock.release()
            raise
        self._thread = threading.Thread(target=self._maintain, name="local-store", daemon=True)
        self._thread.start()

    def ping(self) -> None:
        """See Store: the folder is there."""
        self._lock.require()

    # The register

    def _begin(self) -> None:
        folders = {path for path in self.path.glob("kb-*") if path.is_dir()}
        if (self.path / _REGISTER).is_file():
            self._read_register()
        elif folders:
            raise StoreUnavailable(
                f"the store at {self.path} has lost {_REGISTER}, which names its knowledge bases"
                f" ({len(folders)} folders are there): restore a backup"
            )
        else:
            self._write_register({}, 1)
        for base in list(self._bases.values()):
            try:
                self._open[base.number] = LocalKnowledgeBase(
                    self._folder(base.number), base.identity.dimension, self._rules
                )
            except Memory3Error as error:
                self._set_problem(base, [str(error)])
        # Those of knowledge bases that were dropped, or not yet created, when a process died.
        for folder in folders - {self._folder(base.number) for base in self._bases.values()}:
            shutil.rmtree(folder, ignore_errors=True)

    def _write_register(self, bases: dict[str, KnowledgeBase], next_number: int) -> None:
        """Durable when it returns; raises without a trace when that fails."""
        listed = [
            {**asdict(base), "created_at": round(base.created_at.timestamp() * 1000), "problem": ""}
            for base in bases.values()
        ]
        content = {"format": DATA_FORMAT, "next_number": next_number, "knowledge_bases": listed}
        path = self.path / _REGISTER
        with disk_errors(f"writing {_REGISTER}"):
            temporary = path.with_name(f".{_REGISTER}.new")
            with temporary.open("wb") as file:
                file.write(_text(content))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(self.path)
        self._bases, self._next_number = bases, next_number

    def _read_register(self) -> None:
        path = self.path / _REGISTER
        try:
            raw = path.read_bytes()
            content = json.loads(raw)["store"]
            if raw != _text(content):
                raise ValueError("it is not what was written")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreUnavailable(f"{path} is damaged ({error}): restore a backup") from error
        if content["format"] != DATA_FORMAT:
            raise StoreUnavailable(
                f"the store at {self.path} has data format {content['format']}, this version reads {DATA_FORMAT}:"
                " restore a backup made by the version that wrote it, or name an empty folder and ingest again"
            )
        self._bases = {one["name"]: _base_of(one) for one in content["knowledge_bases"]}
        self._next_number = content["next_number"]

    # Knowledge bases

    def _folder(self, number: int) -> Path:
        return self.path / f"kb-{number:06d}"

    def _set_problem(self, base: KnowledgeBase, problems: list[str]) -> None:
        """Notes it where the knowledge base is still there."""
        with self._change:
            if (now := self._bases.get(base.name)) is not None and now.number == base.number:
                self._bases = {**self._bases, base.name: replace(base, problem=problem_text(problems))}

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
                raise KnowledgeBaseExists(
                    f"a knowledge base called {name!r} is there already", knowledge_base=name
                )
            created_at = datetime.fromtimestamp(int(time.time() * 1000) / 1000, timezone.utc)
            base = KnowledgeBase(self._next_number, name, description, identity, created_at)
            folder = self._folder(base.number)
            shutil.rmtree(folder, ignore_errors=True)  # of a creation that did not end
            opened = LocalKnowledgeBase(folder, identity.dimension, self._rules, create=True)
            try:
                self._write_register({**self._bases, name: base}, base.number + 1)
            except BaseException:
                opened.drop()
                raise
            self._open[base.number] = opened
            return base

    def drop(self, base: KnowledgeBase) -> None:
        with self._change:
            left = {name: one for name, one in self._bases.items() if one.number != base.number}
            self._write_register(left, self._next_number)  # from here on the folder is nobody's
            opened = self._open.pop(base.number, None)
        if opened is not None:
            opened.drop()
        shutil.rmtree(self._folder(base.number), ignore_errors=True)

    @contextlib.contextmanager
    def _of(self, base: KnowledgeBase) -> Iterator[LocalKnowledgeBase]:
        """The open knowledge base; damage that is found meanwhile says whose it is."""
        current, opened = self._bases.get(base.name), self._open.get(base.number)
        if current is not None and current.number == base.number:
            require_sound(current)
        if current is None or current.number != base.number or opened is None:
            message = f"knowledge base {base.name!r} was deleted meanwhile"
            raise KnowledgeBaseNotFound(message, knowledge_base=base.name)
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
    def _reading(self, base: KnowledgeBase) -> Iterator[Snapshot]:
        with self._of(base) as opened, opened.reading() as (snapshot, _):
            yield snapshot

    def versions(self, base: KnowledgeBase, keys: Sequence[str]) -> dict[str, StoredVersion]:
        with self._reading(base) as snapshot:
            return {
                key: StoredVersion(one.content_hash, tuple(memory_id for memory_id, _ in snapshot.texts(one)))
                for key, one in snapshot.documents(keys).items()
            }

    def document(self, base: KnowledgeBase, key: str) -> StoredDocument:
        with self._reading(base) as snapshot:
            if (found := snapshot.documents([key]).get(key)) is None:
                raise unknown_document(base, key)
            texts = snapshot.texts(found)
        stored_at = datetime.fromtimestamp(found.stored_ms / 1000, timezone.utc)
        return StoredDocument(key, found.title, found.metadata, found.content_hash, stored_at, texts)

    def revision(self, base: KnowledgeBase) -> Revision:
        with self._reading(base) as snapshot:
            return snapshot.revision()

    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        with self._reading(base) as snapshot:
            return snapshot.memories(after_id, count)

    def keys(
        self,
        base: KnowledgeBase,
        prefix: str,
        *,
        after_key: str | None,
        count: int,
        filter: Filter | None = None,
    ) -> list[str]:
        """See Store; no key is empty, so '' begins at the first."""
        with self._reading(base) as snapshot:
            return snapshot.keys(prefix, after_key or "", count, filter)

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        with self._reading(base) as snapshot:
            return snapshot.unwritten(count)

    def statistics(self, base: KnowledgeBase) -> Statistics:
        with self._reading(base) as snapshot:
            documents, references, payload_bytes, text_bytes, unwritten = snapshot.sums()
            files = [path.stat() for path in self._folder(base.number).iterdir() if path.is_file()]
        stored_bytes = sum(file.st_blocks * 512 for file in files)
        return Statistics(documents, references, payload_bytes, text_bytes, stored_bytes, unwritten)

    def check(self, base: KnowledgeBase, *, deep: bool = False) -> list[str]:
        if problem := self.knowledge_base(base.name).problem:
            return [problem]
        with self._of(base) as opened:
            return opened.problems(deep=deep)

    # Writing

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        with self._of(base) as opened:
            return opened.write(documents)

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        with self._of(base) as opened:
            return opened.delete(keys)

    # In the background

    def _maintain(self) -> None:
        while not self._closing:
            for base in self.knowledge_bases():
                opened = self._open.get(base.number)
                rests = time.monotonic() - self._failed.get(base.number, -_RETRY_S) < _RETRY_S
                if opened is None or base.problem or self._closing or rests:
                    continue  # a disk that was full a moment ago is not free a second later
                try:
                    if problems := opened.maintain():
                        logger().error(
                            "knowledge_base_refused", knowledge_base=base.name, problem=problems[0]
                        )
                        self._set_problem(base, problems)
                except KnowledgeBaseNotFound:  # deleted, or the store is closed
                    continue
                except Exception as error:  # reading and writing go on; it is tried again
                    self._failed[base.number] = time.monotonic()
                    logger().error("maintenance_failed", knowledge_base=base.name, problem=str(error))
            self._wake.wait(_IDLE_S)
            self._wake.clear()

    def close(self) -> None:
        self._closing = True
        with self._change:
            for opened in self._open.values():
                opened.close()
            self._open.clear()
        self._wake.set()
        self._thread.join(60)
        self._lock.release()


def _base_of(listed: dict[str, Any]) -> KnowledgeBase:
    created_at = datetime.fromtimestamp(listed["created_at"] / 1000, timezone.utc)
    identity = WriterIdentity(**listed["identity"])
    return KnowledgeBase(**{**listed, "identity": identity, "created_at": created_at, "problem": ""})


def _text(content: dict[str, Any]) -> bytes:
    crc = google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    return json.dumps({"crc32c": f"{crc:08x}", "store": content}, indent=1, sort_keys=True).encode()
