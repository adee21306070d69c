"""What a knowledge base holds in a ClickHouse engine: its documents by key, its memories in order, how much it is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from memory_service.errors import DocumentNotFound
from memory_service.stores import (
    KnowledgeBase,
    Statistics,
    StoredDocument,
    StoredMemory,
    StoredVersion,
    require_sound,
)
from memory_service.stores.clickhouse.engine import Engine

# Keys in one statement: as text in an address they stay below the megabyte that a server takes.
_KEYS_AT_ONCE = 256


def payloads_of(client: Any, kb: int, memory_ids: set[int]) -> dict[int, bytes]:
    """Payloads of knowledge base `kb` by id, read with this handle; ids that are not there are left out."""
    if not memory_ids:
        return {}
    rows = client.query(
        f"SELECT id, payload FROM payloads WHERE kb = {kb} AND id IN ({', '.join(map(str, memory_ids))})"
        " SETTINGS max_threads = 1",
        column_formats={"payload": "bytes"},
    ).result_rows
    return {int(memory_id): payload for memory_id, payload in rows}


class Contents:
    """Reads of the tables; may be used from any thread. What its methods promise is said at those of Store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def versions(self, base: KnowledgeBase, keys: Sequence[str]) -> dict[str, StoredVersion]:
        """See Store."""
        require_sound(base)
        found = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            rows = self._engine.rows(
                "SELECT key, content_hash, memory_ids FROM documents FINAL"
                " WHERE kb = {kb:UInt32} AND key IN {keys:Array(String)} AND deleted = 0",
                {"kb": base.number, "keys": list(keys[start : start + _KEYS_AT_ONCE])},
            )
            for key, content_hash, ids in rows:
                found[key] = StoredVersion(bytes(content_hash), tuple(map(int, ids)))
        return found

    def document(self, base: KnowledgeBase, key: str) -> StoredDocument:
        """See Store."""
        require_sound(base)
        rows = self._engine.rows(
            "SELECT title, metadata, content_hash, toUnixTimestamp64Milli(stored_at), memory_ids FROM documents FINAL"
            " WHERE kb = {kb:UInt32} AND key = {key:String} AND deleted = 0",
            {"kb": base.number, "key": key},
        )
        if not rows:
            raise DocumentNotFound(
                f"knowledge base {base.name!r} has no document {key[:200]!r}", document_key=key
            )
        title, metadata, content_hash, ms, ids = rows[0]
        found = self._engine.rows(
            f"SELECT id, text FROM references_{base.identity.dimension}"
            " WHERE kb = {kb:UInt32} AND id IN {ids:Array(UInt64)}",
            {"kb": base.number, "ids": list(ids)},
        )
        texts: dict[int, str] = dict(map(tuple, found))
        stored_at = datetime.fromtimestamp(ms / 1000, timezone.utc)
        references = [(int(memory_id), texts.get(memory_id, "")) for memory_id in ids]
        return StoredDocument(key, title, dict(metadata), bytes(content_hash), stored_at, references)

    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        """See Store."""
        require_sound(base)
        after = "" if after_id is None else f" AND id > {int(after_id)}"
        with self._engine.reader() as client:
            rows = client.query(
                "SELECT id, document_key, title, chunk, text, crc32c, CAST(embedding, 'Array(Float32)')"
                f" FROM references_{base.identity.dimension} WHERE kb = {base.number}{after}"
                f" ORDER BY id LIMIT {int(count)} SETTINGS max_threads = 1"
            ).result_rows
            payloads = payloads_of(client, base.number, {int(row[0]) for row in rows})
        # A memory without payload was removed between the two reads, which the revision tells.
        return [
            StoredMemory(
                int(row[0]), row[1], row[2], int(row[3]), row[4], np.asarray(row[6], np.float32),
                payloads.get(int(row[0]), b""), int(row[5]),
            )
            for row in rows
        ]  # fmt: skip

    def keys(self, base: KnowledgeBase, prefix: str, *, after_key: str | None, count: int) -> list[str]:
        """See Store."""
        require_sound(base)
        rows = self._engine.rows(
            "SELECT key FROM documents FINAL WHERE kb = {kb:UInt32} AND deleted = 0"
            " AND startsWith(key, {prefix:String}) AND key > {after:String} ORDER BY key LIMIT {count:UInt32}",
            {"kb": base.number, "prefix": prefix, "after": after_key or "", "count": count},
        )
        return [row[0] for row in rows]

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        """See Store."""
        require_sound(base)
        rows = self._engine.rows(
            "SELECT key FROM documents FINAL WHERE kb = {kb:UInt32} AND deleted = 0 AND payload_bytes = 0"
            " LIMIT {count:UInt32}",
            {"kb": base.number, "count": count},
        )
        return [row[0] for row in rows]

    def statistics(self, base: KnowledgeBase) -> Statistics:
        """See Store."""
        require_sound(base)
        documents, references, payload_bytes, text_bytes, unwritten = self._engine.rows(
            "SELECT count(), sum(length(memory_ids)), sum(payload_bytes), sum(text_bytes), countIf(payload_bytes = 0)"
            " FROM documents FINAL WHERE kb = {kb:UInt32} AND deleted = 0",
            {"kb": base.number},
        )[0]
        return Statistics(
            int(documents), int(references), int(payload_bytes), int(text_bytes), self.bytes_on_disk(base),
            int(unwritten),
        )  # fmt: skip

    def bytes_on_disk(self, base: KnowledgeBase) -> int:
        """What all its tables take on disk, compressed."""
        rows = self._engine.rows(
            f"SELECT sum(bytes_on_disk) FROM {self._engine.dialect.system('parts')}"
            " WHERE active AND database = currentDatabase() AND partition_id = {kb:String}",
            {"kb": str(base.number)},
        )
        return int(rows[0][0])
