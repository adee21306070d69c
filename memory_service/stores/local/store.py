"""The local store: `file:///path`, for one machine. `store.json` says which knowledge bases there are."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
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
from memory_service.stores.filters import Filter, matches
from memory_service.stores.folder_lock import FolderLock
from memory_service.stores.identity import WriterIdentity
from memory_service.stores.local.knowledge_base import LocalKnowledgeBase, LocalRules
from memory_service.stores.local.sqlite import Database, disk_errors, sync_folder

DATA_FORMAT = 2
_REGISTER = "store.json"
_KEYS_AT_ONCE = 1000
_IDLE_S = 2.0
_RETRY_S = 60.0


class LocalStore(Store):
    """See Store for the contract. One process writes to a path, any number of others may read it with `read_only`.

    What the one acknowledged, the others find at once. A thread of its own saves indexes and compares checksums.
    """

    def __init__(self, path: Path, rules: LocalRules | None = None, *, read_only: bool = False) -> None:
        """Opens every knowledge base and checks it; raises StoreUnavailable when the path cannot be used.

        read_only: methods that write raise StoreUnavailable; checksums are left to the process that writes, but each
        payload is compared with its own when it is read.
        """
        self.path = path
        self._rules = rules or LocalRules()
        self._lock = None if read_only else FolderLock(path)
        self._change = threading.RLock()
        self._bases: dict[str, KnowledgeBase] = {}
        self._next_number = 1
        self._state = (0, 0)
        self._open: dict[int, LocalKnowledgeBase] = {}
        self._wake, self._closing = threading.Event(), False
        self._failed: dict[int, float] = {}
        try:
            self._begin()
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

    # The register

    def _begin(self) -> None:
        folders = {path for path in self.path.glob("kb-*") if path.is_dir()}
        if (self.path / _REGISTER).is_file():
            self._read_register()
        elif self._lock is None:
            raise StoreUnavailable(f"there is no store at {self.path}: a service that writes makes one")
        elif folders:
            raise StoreUnavailable(
                f"the store at {self.path} has lost {_REGISTER}, which names its knowledge bases"
                f" ({len(folders)} folders are there): restore a backup"
            )
        else:
            self._write_register({}, 1)
        for base in list(self._bases.values()):
            self._open_base(base)
        if self._lock is not None:
            # Those of knowledge bases that were dropped, or not yet created, when a process died.
            for folder in folders - {self._folder(base.number) for base in self._bases.values()}:
                shutil.rmtree(folder, ignore_errors=True)

    def _write_register(self, bases: dict[str, KnowledgeBase], next_number: int) -> None:
        """Durable when it returns; raises without a trace when that fails."""
        listed = [
            {**asdict(base), "created_at": round(base.created_at.timestamp() * 1000)}
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
            state, raw = _state_of(path), path.read_bytes()
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
        self._next_number, self._state = content["next_number"], state

    def _follow(self) -> None:
        """Where another process writes: takes notice of knowledge bases that it made, dropped or found damaged."""
        if self._lock is not None:
            return
        with self._change, disk_errors(f"reading {_REGISTER}"):
            if _state_of(self.path / _REGISTER) == self._state:
                return
            self._read_register()
            living = {base.number: base for base in self._bases.values()}
            for number in [n for n in self._open if n not in living]:
                self._open.pop(number).close()
            for number, base in living.items():
                if number not in self._open:
                    self._open_base(base)

    # Knowledge bases

    def _folder(self, number: int) -> Path:
        return self.path / f"kb-{number:06d}"

    def _open_base(self, base: KnowledgeBase) -> None:
        writable = self._lock is not None
        try:
            self._open[base.number] = LocalKnowledgeBase(
                self._folder(base.number), base.identity.dimension, self._rules, writable=writable
            )
        except Memory3Error as error:
            self._set_problem(base, [str(error)])
        else:
            if writable and base.problem:  # it is sound again
                self._set_problem(base, [])

    def _set_problem(self, base: KnowledgeBase, problems: list[str]) -> None:
        """Notes it where the knowledge base is still there; the processes that read find it in the register."""
        with self._change:
            if (now := self._bases.get(base.name)) is None or now.number != base.number:
                return
            bases = {**self._bases, base.name: replace(base, problem=problem_text(problems))}
            if self._lock is None:
                self._bases = bases
            else:
                self._write_register(bases, self._next_number)

    def _require_writable(self) -> None:
        if self._lock is None:
            raise StoreUnavailable(
                f"this process has the store at {self.path} for reading only: send writes to the one that writes"
            )

    def knowledge_bases(self) -> list[KnowledgeBase]:
        """See Store."""
        self._follow()
        return [base for _, base in sorted(self._bases.items())]

    def knowledge_base(self, name: str) -> KnowledgeBase:
        """See Store."""
        self._follow()
        base = self._bases.get(name)
        if base is None:
            raise unknown_knowledge_base(name, list(self._bases))
        return base

    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        """See Store."""
        self._require_writable()
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
        """See Store."""
        self._require_writable()
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
        self._follow()
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
        """See Store."""
        with self._of(base) as opened:
            return opened.retrieve(query)

    @contextlib.contextmanager
    def _reading(self, base: KnowledgeBase) -> Iterator[tuple[Database, sqlite3.Connection]]:
        with self._of(base) as opened, opened.reading() as (connection, _):
            yield opened.database, connection

    def versions(self, base: KnowledgeBase, keys: Sequence[str]) -> dict[str, StoredVersion]:
        """See Store."""
        with self._reading(base) as (database, connection):
            return {
                key: StoredVersion(
                    document.content_hash, tuple(one for one, _ in database.texts(connection, document))
                )
                for key, document in database.documents(connection, keys).items()
            }

    def document(self, base: KnowledgeBase, key: str) -> StoredDocument:
        """See Store."""
        with self._reading(base) as (database, connection):
            if (found := database.documents(connection, [key]).get(key)) is None:
                message = f"knowledge base {base.name!r} has no document {key[:200]!r}"
                raise DocumentNotFound(message, document_key=key)
            texts = database.texts(connection, found)
        stored_at = datetime.fromtimestamp(found.stored_ms / 1000, timezone.utc)
        return StoredDocument(key, found.title, found.metadata, found.content_hash, stored_at, texts)

    def revision(self, base: KnowledgeBase) -> Revision:
        """See Store."""
        with self._reading(base) as (database, connection):
            return database.revision(connection)

    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        """See Store."""
        with self._reading(base) as (database, connection):
            rows = database.rows_after(connection, after_id, count)
            known, ascending = database.references(connection, rows), sorted(rows)
            vectors = database.vectors(connection, ascending, base.identity.dimension)
        at = {row: place for place, row in enumerate(ascending)}
        return [
            StoredMemory(
                one.memory_id, one.key, one.title, one.chunk, one.text, vectors[at[row]], one.payload or b"",
                one.crc32c,
            )
            for row in rows for one in [known[row]]
        ]  # fmt: skip

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
        found: list[str] = []
        after, at_once = after_key or "", count if filter is None else max(count, _KEYS_AT_ONCE)
        with self._reading(base) as (database, connection):
            while len(found) < count and (page := database.keys(connection, prefix, after, at_once)):
                found += [key for key, metadata in page if filter is None or matches(filter, metadata)]
                after = page[-1][0]
        return found[:count]

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        """See Store."""
        with self._reading(base) as (database, connection):
            return database.unwritten(connection, count)

    def statistics(self, base: KnowledgeBase) -> Statistics:
        """See Store."""
        with self._reading(base) as (database, connection):
            documents, references, payload_bytes, text_bytes, unwritten = database.sums(connection)
            files = [path.stat().st_blocks * 512 for path in database.path.parent.iterdir() if path.is_file()]
        return Statistics(documents, references, payload_bytes, text_bytes, sum(files), unwritten)

    def check(self, base: KnowledgeBase, *, deep: bool = False) -> list[str]:
        """See Store."""
        current = self.knowledge_base(base.name)
        if current.problem:
            return [current.problem]
        with self._of(base) as opened:
            return opened.problems(deep=deep)

    # Writing

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store."""
        self._require_writable()
        with self._of(base) as opened:
            return opened.write(documents)

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        self._require_writable()
        with self._of(base) as opened:
            return opened.delete(keys)

    # In the background

    def _maintain(self) -> None:
        while not self._closing:
            for base in list(self._bases.values()):
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
                except Exception as error:  # reading and writing go on; it is tried again
                    self._failed[base.number] = time.monotonic()
                    logger().error("maintenance_failed", knowledge_base=base.name, problem=str(error))
            self._wake.wait(_IDLE_S)
            self._wake.clear()

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


def _state_of(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns


def _base_of(listed: dict[str, Any]) -> KnowledgeBase:
    created_at = datetime.fromtimestamp(listed["created_at"] / 1000, timezone.utc)
    return KnowledgeBase(
        **{**listed, "identity": WriterIdentity(**listed["identity"]), "created_at": created_at}
    )


def _text(content: dict[str, Any]) -> bytes:
    crc = google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    return json.dumps({"crc32c": f"{crc:08x}", "store": content}, indent=1, sort_keys=True).encode()
