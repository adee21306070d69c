"""Reads of references in a ClickHouse engine: rows that any number of processes insert and the engine adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.store import KnowledgeBase, ReadReference, UsageGroup, require_sound, usage_groups

_FORGOTTEN_AT_ONCE = 400  # their keys in hexadecimal stay below the megabyte that a cluster's Keeper takes


class Uses:
    """Reads of one store. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._join = f"{'GLOBAL ' if engine.dialect.cluster else ''}INNER JOIN"

    def add(self, base: KnowledgeBase, reads: Mapping[tuple[str, int], int]) -> None:
        """See Store.add_reads. An insert that is repeated after an error counts once."""
        require_sound(base)
        columns: dict[str, Sequence[Any]] = {
            "kb": [base.number] * len(reads),
            "document_key": [key for key, _ in reads],
            "chunk": [chunk for _, chunk in reads],
            "reads": list(reads.values()),
        }
        if reads:
            self._engine.insert("uses", columns)

    def most_read(self, base: KnowledgeBase, count: int) -> list[ReadReference]:
        """See Store."""
        require_sound(base)
        rows = self._engine.rows(
            f"SELECT u.document_key, u.chunk, u.total FROM {self._of_references(base)} AS u {self._join}"
            f" (SELECT key, length(memory_ids) AS size FROM documents FINAL WHERE kb = {base.number} AND deleted = 0)"
            f" AS d ON u.document_key = d.key WHERE u.chunk < d.size ORDER BY u.total DESC LIMIT {int(count)}"
        )
        return [ReadReference(key, int(chunk), int(reads)) for key, chunk, reads in rows]

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        """Keys of documents that were read and lack their memories, the most read first."""
        require_sound(base)
        rows = self._engine.rows(
            "SELECT u.document_key FROM (SELECT document_key, sum(reads) AS total FROM uses"
            f" WHERE kb = {base.number} GROUP BY document_key) AS u {self._join} (SELECT key FROM documents FINAL"
            f" WHERE kb = {base.number} AND deleted = 0 AND written != 1) AS d ON u.document_key = d.key"
            f" ORDER BY u.total DESC LIMIT {int(count)}"
        )
        return [key for (key,) in rows]

    def usage(self, base: KnowledgeBase, bounds: Sequence[int]) -> list[UsageGroup]:
        """See Store."""
        require_sound(base)
        level = " + ".join(f"(u.total >= {int(bound)})" for bound in bounds) or "0"
        documents = (
            "(SELECT key, written = 1 AS there, length(memory_ids) AS size, payload_bytes, text_bytes"
            f" FROM documents FINAL WHERE kb = {base.number} AND deleted = 0)"
        )
        read = self._engine.rows(
            f"SELECT d.there, {level} AS level, count(), sum(u.total), sum(d.payload_bytes / d.size),"
            f" sum(d.text_bytes / d.size) FROM {self._of_references(base)} AS u {self._join} {documents} AS d"
            " ON u.document_key = d.key WHERE u.chunk < d.size GROUP BY d.there, level"
        )
        every = self._engine.rows(
            f"SELECT d.there, 0, sum(d.size), 0, sum(d.payload_bytes), sum(d.text_bytes) FROM {documents} AS d"
            " GROUP BY d.there"
        )
        return usage_groups(read, every)

    def forget(self, base: KnowledgeBase) -> bool:
        """Removes some of the reads of documents that are not there, in the background; whether there may be more."""
        among = "GLOBAL " if self._engine.dialect.cluster else ""
        rows = self._engine.rows(
            f"SELECT DISTINCT document_key FROM uses WHERE kb = {base.number} AND document_key {among}NOT IN"
            f" (SELECT key FROM documents FINAL WHERE kb = {base.number} AND deleted = 0) LIMIT {_FORGOTTEN_AT_ONCE}"
        )
        if rows:
            self._engine.command(self._engine.dialect.forgetting("uses", base.number, [key for (key,) in rows]))
        return len(rows) == _FORGOTTEN_AT_ONCE

    def _of_references(self, base: KnowledgeBase) -> str:
        """The reads of each reference as a subquery."""
        return (
            f"(SELECT document_key, chunk, sum(reads) AS total FROM uses WHERE kb = {base.number}"
            " GROUP BY document_key, chunk)"
        )
