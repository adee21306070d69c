"""The records of knowledge bases in the store, made and dropped by any number of processes.

Numbers follow one another and are never used again. A process that makes a knowledge base inserts the row of the next
number under a token of that number: of several the server stores the first and drops the others, which read what there
is now and try again. So each has seen all names before its own, and no name is there twice.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from dataclasses import replace
from datetime import datetime, timezone

from memory_service.errors import StoreUnavailable
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.store import (
    KnowledgeBase,
    WriterIdentity,
    deleted_meanwhile,
    name_taken,
    unknown_knowledge_base,
)

_ATTEMPTS = 60
_PAUSE_S = 0.05
_WITHOUT_PARTITION = "all"  # what the engine calls all of a table that has none


class Bases:
    """Knowledge bases by name, as they were when last read. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        """Reads the records; raises StoreUnavailable."""
        self._engine = engine
        self._by_name: dict[str, KnowledgeBase] = {}
        self._numbers: set[int] = set()
        self._lock = threading.Lock()
        self._read_at = 0.0
        self.refresh()

    def refresh(self) -> dict[str, KnowledgeBase]:
        """Reads the records again; returns those that live, by name."""
        started = time.monotonic()
        rows = self._engine.rows(
            "SELECT dropped, number, name, description, model_id, codec_id, memory_format_id, embedder_id, dimension,"
            " toUnixTimestamp64Milli(created_at) FROM knowledge_bases FINAL"
        )
        by_name = {}
        for dropped, number, name, description, *ids, ms in rows:
            if not dropped:
                created_at = datetime.fromtimestamp(ms / 1000, timezone.utc)
                by_name[name] = KnowledgeBase(int(number), name, description, WriterIdentity(*ids), created_at)
        with self._lock:
            if started >= self._read_at:
                self._by_name, self._read_at = by_name, started
                self._numbers = {int(row[1]) for row in rows}
        return by_name

    def all(self) -> list[KnowledgeBase]:
        """All of them, by name."""
        return [base for _, base in sorted(self._by_name.items())]

    def named(self, name: str) -> KnowledgeBase:
        """The one of this name, which another process may just have made; raises KnowledgeBaseNotFound."""
        base = self._by_name.get(name)
        if base is None and self._engine.dialect.shared:
            base = self.refresh().get(name)
        if base is None:
            raise unknown_knowledge_base(name, list(self._by_name))
        return base

    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        """A new one; raises KnowledgeBaseExists."""
        creator, attempt = random.getrandbits(64), 0
        created_at = datetime.fromtimestamp(int(time.time() * 1000) / 1000, timezone.utc)
        while attempt < _ATTEMPTS:
            if name in self.refresh():
                raise name_taken(name)
            # A token without a row is of a store that was set back to an earlier state: its number is passed over.
            number = 1 + max(self._numbers, default=0) + attempt // 20
            base = KnowledgeBase(number, name, description, identity, created_at)
            self._record(base, creator, f"number {number}")
            rows = self._engine.rows(f"SELECT creator FROM knowledge_bases WHERE number = {number} AND dropped = 0")
            if rows and int(rows[0][0]) == creator:
                self.refresh()
                return base
            if not rows:
                attempt += 1
                time.sleep(_PAUSE_S)
        raise StoreUnavailable(f"the store has no row of knowledge base {name!r}, which was inserted: try again")

    def adopt(self, base: KnowledgeBase, identity: WriterIdentity) -> KnowledgeBase:
        """Records another writer: of rows of one change the last is read, and a drop comes after them.

        Raises KnowledgeBaseNotFound for one that was dropped.
        """
        found = self.refresh().get(base.name)
        if found is None or found.number != base.number:
            raise deleted_meanwhile(base)
        adopted = replace(base, identity=identity)
        self._record(adopted, random.getrandbits(64), f"writer {uuid.uuid4().hex}")
        self.refresh()
        return adopted

    def drop(self, base: KnowledgeBase) -> None:
        """Removes the record, then the rows; what other processes still write goes by `drop_leftovers`."""
        self._record(base, 0, f"drop {base.number}", dropped=1)
        self.refresh()
        self._drop_partitions(str(base.number))

    def drop_leftovers(self) -> None:
        """Removes what is left of dropped knowledge bases."""
        living = {str(base.number) for base in self.refresh().values()}
        dropped = {str(number) for number in self._numbers} - living
        for partition in sorted({partition for _, partition in self._partitions()} & dropped):
            self._drop_partitions(partition)

    def bytes_on_disk(self, base: KnowledgeBase) -> int:
        """What all its tables take on disk, compressed."""
        rows = self._engine.rows(
            f"SELECT sum(bytes_on_disk) FROM {self._engine.dialect.system('parts')}"
            f" WHERE active AND database = currentDatabase() AND partition_id = '{base.number}'"
        )
        return int(rows[0][0])

    def _record(self, base: KnowledgeBase, creator: int, token: str, *, dropped: int = 0) -> None:
        identity = base.identity
        values = {
            "number": base.number,
            "name": base.name,
            "description": base.description,
            "model_id": identity.model_id,
            "codec_id": identity.codec_id,
            "memory_format_id": identity.memory_format_id,
            "embedder_id": identity.embedder_id,
            "dimension": identity.dimension,
            "created_at": base.created_at,
            "creator": creator,
            "dropped": dropped,
            "change": 1 + dropped,
        }
        self._engine.insert("knowledge_bases", {name: [value] for name, value in values.items()}, token)

    def _partitions(self) -> list[tuple[str, str]]:
        """Tables, as they are stored, and the partitions in them."""
        rows = self._engine.rows(
            f"SELECT DISTINCT table, partition_id FROM {self._engine.dialect.system('parts')}"
            f" WHERE active AND database = currentDatabase() AND partition_id != '{_WITHOUT_PARTITION}'"
        )
        return [(str(table), str(partition)) for table, partition in rows]

    def _drop_partitions(self, partition: str) -> None:
        dialect = self._engine.dialect
        tables = self._engine.rows(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND partition_key = 'kb' ORDER BY name"
        )
        for (table,) in tables:
            for what, settings in (("", ""), ("DETACHED ", " SETTINGS allow_drop_detached = 1")):
                self._engine.command(
                    f"ALTER TABLE {table}{dialect.on_cluster} DROP {what}PARTITION ID '{partition}'{settings}"
                )
