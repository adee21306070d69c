"""The records of knowledge bases in the store, and their removal, partition by partition."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from memory_service.errors import KnowledgeBaseExists, StoreUnavailable
from memory_service.stores import KnowledgeBase, unknown_knowledge_base
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.clickhouse.soundness import DetachedPart, detached_parts
from memory_service.stores.identity import WriterIdentity

_WITHOUT_PARTITION = "all"  # what the engine calls all of a table that has none


class Registry:
    """Knowledge bases by name and number. Numbers are never used twice. Changes need the store's write lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_name: dict[str, KnowledgeBase] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reads the records again; the problems that were noted of knowledge bases stay."""
        rows = self._engine.rows(
            "SELECT number, name, description, model_id, codec_id, memory_format_id, embedder_id, dimension,"
            " toUnixTimestamp64Milli(created_at) FROM knowledge_bases FINAL WHERE dropped = 0 ORDER BY name"
        )
        problems = {base.number: base.problem for base in self._by_name.values()}
        by_name = {}
        for number, name, description, *ids, ms in rows:
            created_at = datetime.fromtimestamp(ms / 1000, timezone.utc)
            identity, problem = WriterIdentity(*ids), problems.get(number, "")
            by_name[name] = KnowledgeBase(number, name, description, identity, created_at, problem)
        self._by_name = by_name

    def all(self) -> list[KnowledgeBase]:
        """All of them, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def named(self, name: str) -> KnowledgeBase:
        """The one of this name; raises KnowledgeBaseNotFound."""
        base = self._by_name.get(name)
        if base is None:
            raise unknown_knowledge_base(name, list(self._by_name))
        return base

    def numbered(self, number: int) -> KnowledgeBase | None:
        """The one of this number, if there is one."""
        return next((base for base in self._by_name.values() if base.number == number), None)

    def set_problem(self, base: KnowledgeBase, problem: str) -> None:
        """Notes what is wrong with a knowledge base."""
        self._by_name[base.name] = replace(base, problem=problem)

    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        """A new one; raises KnowledgeBaseExists."""
        if name in self._by_name:
            raise KnowledgeBaseExists(
                f"a knowledge base called {name!r} is there already", knowledge_base=name
            )
        number = 1 + int(self._engine.rows("SELECT max(number) FROM knowledge_bases")[0][0])
        created_at = datetime.fromtimestamp(int(time.time() * 1000) / 1000, timezone.utc)
        base = KnowledgeBase(number, name, description, identity, created_at)
        self._record(base, dropped=0)
        self._by_name[name] = base
        return base

    def drop(self, base: KnowledgeBase) -> None:
        """Removes the record first: what a killed process leaves behind is then nobody's, see drop_leftovers."""
        self._record(base, dropped=1)
        self._by_name.pop(base.name, None)
        for table in self._partitioned_tables():
            self._drop_partition(table, str(base.number))
        self._drop_detached(
            [part for part in detached_parts(self._engine) if part.partition == str(base.number)]
        )

    def drop_leftovers(self, detached: Sequence[DetachedPart]) -> list[DetachedPart]:
        """Removes what is left of dropped knowledge bases; returns the detached parts of those that live.

        Raises StoreUnavailable where there are memories of a knowledge base that no record names.
        """
        rows = self._engine.rows("SELECT number, dropped FROM knowledge_bases FINAL")
        recorded, dropped = {str(row[0]) for row in rows}, {str(row[0]) for row in rows if row[1]}
        left = self._engine.rows(
            f"SELECT DISTINCT table, partition_id FROM {self._engine.dialect.system('parts')}"
            " WHERE active AND database = currentDatabase()"
        )
        lost = sorted({partition for _, partition in left} - recorded - {_WITHOUT_PARTITION})
        if lost and not self._engine.dialect.cluster:
            raise StoreUnavailable(
                f"the store has lost the records of knowledge bases number {', '.join(lost)}, whose memories are there:"
                " restore a backup"
            )
        for table, partition in left:
            if partition in dropped:
                self._drop_partition(self._engine.dialect.logical(table), partition)
        self._drop_detached([part for part in detached if part.partition in dropped])
        return [part for part in detached if part.partition not in dropped]

    def _record(self, base: KnowledgeBase, dropped: int) -> None:
        identity = base.identity
        values = {
            "number": base.number, "name": base.name, "description": base.description, "model_id": identity.model_id,
            "codec_id": identity.codec_id, "memory_format_id": identity.memory_format_id,
            "embedder_id": identity.embedder_id, "dimension": identity.dimension,
            "created_at": base.created_at, "dropped": dropped, "change": time.time_ns(),
        }  # fmt: skip
        self._engine.insert("knowledge_bases", {name: [value] for name, value in values.items()})

    def _partitioned_tables(self) -> list[str]:
        rows = self._engine.rows(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND partition_key = 'kb' ORDER BY name"
        )
        return [self._engine.dialect.logical(row[0]) for row in rows]

    def _drop_partition(self, table: str, partition: str) -> None:
        self._engine.command(
            f"ALTER TABLE {self._engine.dialect.changed(table)} DROP PARTITION ID '{partition}'"
        )

    def _drop_detached(self, parts: Sequence[DetachedPart]) -> None:
        for part in parts:
            self._engine.command(
                f"ALTER TABLE {self._engine.dialect.changed(part.table)} DROP DETACHED PART {{name:String}}"
                " SETTINGS allow_drop_detached = 1",
                {"name": part.name},
            )
