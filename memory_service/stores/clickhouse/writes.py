"""Writes of documents to a ClickHouse engine by any number of processes, without a lock between them.

    one statement    the newest versions of the keys, the server's clock, and whether the knowledge base lives
    references       under the new version of their document; no search shows them yet
    payloads
    documents        one insert for all documents of the write: the commit

A version is made of the server's clock and random bits, and is above any version that was seen of its key; the newest
one is the document, whichever commit comes last. An insert is repeated under its token, so that one which the server
finishes after its answer was given up is stored once. Deletion is a version too. What is replaced, deleted or was never
committed is removed by age, by any process (`sweep`).
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory3.printable import counted
from memory3.text.words import text_words
from memory_service.errors import StoreUnavailable
from memory_service.stores.clickhouse.bases import Bases
from memory_service.stores.clickhouse.dialect import quoted
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.store import (
    KnowledgeBase,
    NewDocument,
    NewReference,
    Written,
    deleted_meanwhile,
    require_sound,
)

# A version: milliseconds of the server's clock and below them random bits.
_RANDOM_BITS = 22
_KEYS_AT_ONCE = 256
_ROWS_AT_ONCE = 50_000
_BYTES_AT_ONCE = 128 << 20
_SWEPT_AT_ONCE = 10_000


@dataclass(frozen=True)
class Committed:
    """The newest committed version of a document."""

    version: int
    deleted: bool
    content_hash: bytes
    memory_ids: tuple[int, ...]
    written: bool
    size_bytes: int


class Writes:
    """Writes and the sweep of one store. Thread-safe."""

    def __init__(self, engine: Engine, bases: Bases, sweep_after_s: float) -> None:
        """sweep_after_s: see StoreOptions."""
        self._engine = engine
        self._bases = bases
        self._sweep_after_s = sweep_after_s

    def newest(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[dict[str, Committed], int]:
        """The newest versions of these documents, deletions among them, and the server's clock in ms.

        Raises KnowledgeBaseNotFound for one that was dropped, by whatever process.
        """
        require_sound(base)
        found, now_ms = {}, 0
        for start in range(0, len(keys) or 1, _KEYS_AT_ONCE):
            named = ", ".join(map(quoted, keys[start : start + _KEYS_AT_ONCE]))
            rows = self._engine.rows(
                "SELECT 1, key, version, deleted, content_hash, memory_ids, written = 1,"
                " text_bytes + payload_bytes FROM documents FINAL"
                f" WHERE kb = {base.number} AND key IN ({named or quoted('')}) UNION ALL"
                " SELECT 0, '', toUInt64(toUnixTimestamp64Milli(now64(3))), dropped, toFixedString('', 32), [], 0, 0"
                f" FROM knowledge_bases FINAL WHERE number = {base.number}"
            )
            living = False
            for is_document, key, version, deleted, content_hash, ids, written, size_bytes in rows:
                if is_document:
                    ids = tuple(map(int, ids))
                    state = bool(deleted), bytes(content_hash), ids, bool(written), int(size_bytes)
                    found[key] = Committed(int(version), *state)
                else:
                    living, now_ms = not deleted, int(version)
            if not living:
                self._bases.refresh()
                raise deleted_meanwhile(base)
        return found, now_ms

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store. Any number of documents: large writes are inserted in parts and committed by one insert."""
        started = time.monotonic()
        stored, now_ms = self.newest(base, [document.key for document in documents])
        there = {key: one for key, one in stored.items() if not one.deleted}
        versions: dict[str, int] = {}
        for document in documents:
            living = there.get(document.key)
            stored_hash, written = (living.content_hash, living.written) if living is not None else (None, False)
            if not document.changes(stored_hash, written):
                continue
            if living is not None and document.replaces is not None:
                # Next above the one it replaces, so that a newer one stands that is committed meanwhile.
                versions[document.key] = living.version + random.randint(1, 1 << _RANDOM_BITS - 1)
            else:
                versions[document.key] = _version_after(stored.get(document.key), now_ms)
        if fresh := [document for document in documents if document.key in versions]:
            token = uuid.uuid4().hex
            self._insert_references(base, fresh, versions, token)
            if time.monotonic() - started > self._sweep_after_s / 2:
                raise StoreUnavailable(
                    f"writing {counted(len(fresh), 'document')} took longer than {self._sweep_after_s / 2:.0f} s, half"
                    " of the sweep's age: write fewer at once"
                )
            commit = [
                {
                    "kb": base.number,
                    "key": one.key,
                    "version": versions[one.key],
                    "deleted": 0,
                    "content_hash": one.content_hash,
                    "title": one.title,
                    "metadata": dict(one.metadata),
                    "memory_ids": [reference.memory_id for reference in one.references],
                    "text_bytes": sum(len(reference.text.encode()) for reference in one.references),
                    "payload_bytes": sum(len(reference.payload) for reference in one.references),
                    "written": int(one.written),
                }
                for one in fresh
            ]
            self._engine.insert("documents", _columns(commit), token)
        return [
            Written(d.key, len(d.references), d.key in versions and d.key in there, d.key not in versions)
            for d in documents
        ]

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        stored, now_ms = self.newest(base, list(dict.fromkeys(keys)))
        gone = {key: one for key, one in stored.items() if not one.deleted}
        if gone:
            rows = [
                {
                    "kb": base.number,
                    "key": key,
                    "version": _version_after(one, now_ms),
                    "deleted": 1,
                    "content_hash": bytes(32),
                    "written": 0,
                }
                for key, one in gone.items()
            ]
            self._engine.insert("documents", _columns(rows), uuid.uuid4().hex)
        return len(gone), sum(len(one.memory_ids) for one in gone.values())

    def _insert_references(
        self, base: KnowledgeBase, documents: Sequence[NewDocument], versions: Mapping[str, int], token: str
    ) -> None:
        """In parts; payloads behind their references: what a sweep finds of a write that broke off leads to them."""
        rows = [(one, chunk, reference) for one in documents for chunk, reference in enumerate(one.references)]
        repeated = {one.key: _repeated_bytes(one) for one in documents}

        def row_bytes(row: tuple[NewDocument, int, NewReference]) -> int:
            return repeated[row[0].key] + 4 * row[2].vector.size + len(row[2].text)

        for index, part in enumerate(_pieces(rows, row_bytes)):
            heads = [
                {"kb": base.number, "id": reference.memory_id, "version": versions[one.key]}
                for one, _, reference in part
            ]
            references = [
                head
                | {
                    "document_key": one.key,
                    "title": one.title,
                    "chunk": chunk,
                    "text": reference.text,
                    "words": text_words(reference.text).astype("<u4").tobytes(),
                    "metadata": dict(one.metadata),
                    "crc32c": reference.crc32c,
                }
                for head, (one, chunk, reference) in zip(heads, part, strict=True)
            ]
            vectors = self._engine.dialect.vectors([reference.vector for _, _, reference in part])
            self._engine.insert(
                f"references_{base.identity.dimension}", _columns(references) | vectors, f"{token} {index}"
            )
            payloads = [
                head | {"payload": reference.payload} for head, (_, _, reference) in zip(heads, part, strict=True)
            ]
            for number, piece in enumerate(_pieces(payloads, lambda row: len(row["payload"]))):
                self._engine.insert("payloads", _columns(piece), f"{token} {index} {number}")

    def sweep(self, base: KnowledgeBase, older_than_s: float) -> tuple[int, bool]:
        """Removes references and payloads of versions that are not the newest, if so old.

        Returns how many references there were, and whether there may be more.

        They stay for that age after they were replaced, for a snapshot that was begun before. Nobody waits for it:
        searches leave these rows out, and the engine removes them in the background.
        """
        among = "GLOBAL " if self._engine.dialect.cluster else ""
        old_enough = f"now64(6) - INTERVAL {round(older_than_s * 1000)} MILLISECOND"
        table = f"references_{base.identity.dimension}"
        rows = self._engine.rows(
            f"SELECT id, version FROM {table} WHERE kb = {base.number}"
            f" AND stored_at < {old_enough}"
            f" AND (document_key, version) {among}NOT IN"
            f" (SELECT key, version FROM documents FINAL WHERE kb = {base.number} AND deleted = 0)"
            f" AND document_key {among}NOT IN"
            f" (SELECT key FROM documents FINAL WHERE kb = {base.number} AND stored_at >= {old_enough})"
            f" LIMIT {_SWEPT_AT_ONCE}"
        )
        old = [(int(row[0]), int(row[1])) for row in rows]
        if old:
            for name in ("payloads", table):
                self._engine.command(self._engine.dialect.deletion(name, base.number, old))
        return len(old), len(old) == _SWEPT_AT_ONCE


def _version_after(there: Committed | None, now_ms: int) -> int:
    """A new version: by the server's clock, and above the one that is there, should its clock have gone faster."""
    ms = max(now_ms, (there.version >> _RANDOM_BITS) + 1 if there is not None else 0)
    return ms << _RANDOM_BITS | random.getrandbits(_RANDOM_BITS)


def _repeated_bytes(document: NewDocument) -> int:
    """What every reference's row has of its document: it may be more than the reference itself."""
    return len(document.key) + len(document.title) + sum(len(k) + len(v) for k, v in document.metadata.items())


def _pieces(rows: Sequence[Any], size_of: Any) -> Iterator[list[Any]]:
    """The rows in pieces that are bounded in rows and bytes."""
    piece: list[Any] = []
    left = _BYTES_AT_ONCE
    for row in rows:
        if piece and (left <= 0 or len(piece) == _ROWS_AT_ONCE):
            yield piece
            piece, left = [], _BYTES_AT_ONCE
        piece.append(row)
        left -= size_of(row)
    if piece:
        yield piece


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Values by column, as inserts take them."""
    return {name: [row[name] for row in rows] for name in rows[0]}
