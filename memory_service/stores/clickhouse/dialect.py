"""What differs between the engines behind one client: ClickHouse or MyScale, embedded, one server or a cluster.

On a cluster every table is a pair: `x_local`, replicated, holds rows on its shard; `x`, distributed, is what is read
and inserted into. References and payloads are spread over the shards by id. What a batch must write as one block
(documents, intents, totals) is spread by knowledge base, so that one block stays one block.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memory_model.errors import InvalidInput
from memory_service.stores.address import StoreAddress

MYSCALE_INDEX = "SCANN"
_MYSCALE_INDEXES = ("SCANN", "MSTG", "HNSWFLAT", "HNSWSQ", "HNSWPQ", "IVFFLAT", "IVFSQ", "IVFPQ", "FLAT")
_SHARDED_BY_ID = ("payloads", "references_")
_NUMBERED = ("knowledge_bases", "migrations")
_CREATE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)")
_ALTER = re.compile(r"ALTER TABLE (\w+)")
_ENGINE = re.compile(r"ENGINE = (Replacing)?MergeTree(?:\((\w+)\))?")


@dataclass(frozen=True)
class Dialect:
    """How statements are said. engine: "chdb", "clickhouse" or "myscale"; cluster: empty for one server."""

    engine: str
    cluster: str = ""
    vector_index: str = ""

    def __post_init__(self) -> None:
        if self.cluster and (self.engine == "chdb" or not re.fullmatch(r"[\w.-]+", self.cluster)):
            raise InvalidInput(
                f"store cluster {self.cluster!r}: expected a cluster's name, for a store on a server"
            )
        if self.vector_index and (not self.myscale or self.vector_index not in _MYSCALE_INDEXES):
            raise InvalidInput(
                f"vector index {self.vector_index!r}: expected one of {', '.join(_MYSCALE_INDEXES)}, for myscale://"
            )

    @property
    def myscale(self) -> bool:
        """Whether vectors are searched in MyScale's way."""
        return self.engine == "myscale"

    @property
    def shared(self) -> bool:
        """Whether other processes may use the store at the same time."""
        return self.engine != "chdb"

    @property
    def index_type(self) -> str:
        """Type of MyScale's vector index."""
        return self.vector_index or MYSCALE_INDEX

    # Tables

    @property
    def on_cluster(self) -> str:
        """Goes behind the name of what a statement changes."""
        return f" ON CLUSTER '{self.cluster}'" if self.cluster else ""

    def stored(self, table: str) -> str:
        """The table that holds the rows of `table`."""
        return f"{table}_local" if self.cluster else table

    def changed(self, table: str) -> str:
        """As `stored`, with where the statement runs, for statements that change it."""
        return self.stored(table) + self.on_cluster

    def system(self, table: str) -> str:
        """A system table of every shard."""
        return f"cluster('{self.cluster}', system.{table})" if self.cluster else f"system.{table}"

    def logical(self, stored: str) -> str:
        """The name that `stored` gave another one."""
        return stored.removesuffix("_local") if self.cluster else stored

    def statements(self, statement: str) -> list[str]:
        """A statement of a migration as this engine runs it."""
        if not self.cluster:
            return [statement]
        if altered := _ALTER.search(statement):
            return [_ALTER.sub(f"ALTER TABLE {self.changed(altered[1])}", statement)]
        created = _CREATE.search(statement)
        if created is None:
            raise ValueError(f"a migration that is neither CREATE TABLE nor ALTER TABLE: {statement}")
        table = created[1]
        path = f"'/clickhouse/tables/{{shard}}/{{database}}/{table}', '{{replica}}'"

        def replicated(found: re.Match[str]) -> str:
            version = f", {found[2]}" if found[2] else ""
            return f"ENGINE = Replicated{found[1] or ''}MergeTree({path}{version})"

        local = _CREATE.sub(f"CREATE TABLE IF NOT EXISTS {self.changed(table)}", statement)
        by = "id" if table.startswith(_SHARDED_BY_ID) else "number" if table in _NUMBERED else "kb"
        if table == "writers":
            by = "0"
        distributed = (
            f"CREATE TABLE IF NOT EXISTS {table}{self.on_cluster} AS {self.stored(table)}"
            f" ENGINE = Distributed('{self.cluster}', currentDatabase(), {self.stored(table)}, {by})"
        )
        return [_ENGINE.sub(replicated, local), distributed]

    def settings(self) -> dict[str, Any]:
        """Settings of every handle."""
        settings: dict[str, Any] = {
            # Acknowledged means on disk and searchable: no buffering in the engine.
            "async_insert": 0,
            # One batch is one block, hence atomic.
            "max_insert_block_size": 1 << 20,
        }
        if self.cluster:
            settings |= {
                "insert_distributed_sync": 1,  # the same for a distributed table
                "insert_quorum": "auto",  # on most replicas before it is acknowledged,
                "insert_quorum_parallel": 0,
                "select_sequential_consistency": 1,  # and read where all of that is
                "replication_alter_partitions_sync": 2,
            }
        return settings

    def deletion(self, table: str, kb: int) -> str:
        """Removes rows by the parameter `ids`, in the background."""
        if self.myscale:
            return f"DELETE FROM {self.changed(table)} WHERE kb = {int(kb)} AND id IN {{ids:Array(UInt64)}}"
        return (
            f"DELETE FROM {self.changed(table)} IN PARTITION ID '{int(kb)}' WHERE id IN {{ids:Array(UInt64)}}"
            " SETTINGS lightweight_deletes_sync = 0"
        )

    # Vectors

    def distance(self, vector: np.ndarray) -> tuple[str, dict[str, Any]]:
        """The cosine distance of `embedding` to a vector as SQL, and its parameters."""
        if self.myscale:
            return f"distance(embedding, {vector_literal(vector)})", {}
        raw = np.ascontiguousarray(vector, "<f4").tobytes()  # as bytes it is a third faster than as text
        return "cosineDistance(embedding, reinterpret($vector$, 'Array(Float32)'))", {"$vector$": raw}


def dialect_of(address: StoreAddress, cluster: str, vector_index: str) -> Dialect:
    """The dialect of an address; raises InvalidInput for options that do not go with it."""
    return Dialect(address.engine, cluster, vector_index)


def vector_literal(vector: np.ndarray) -> str:
    """A vector as text that reads back as the same float32 numbers."""
    numbers: Sequence[str] = [np.format_float_positional(v, trim="0") for v in np.asarray(vector, np.float32)]
    return f"[{','.join(numbers)}]"
