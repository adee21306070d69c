"""What differs between the engines behind one client: ClickHouse or MyScale, embedded, one server or a cluster.

On a cluster every table is a pair: `x_local`, replicated, holds rows on its shard; `x`, distributed, is what is read
and inserted into. References and payloads are spread over the shards by id. Documents are spread by knowledge base, so
that the rows of one commit stay one block; what names knowledge bases and migrations is on one shard.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memory3.errors import InvalidInput
from memory_service.stores.clickhouse.myscale import BRUTE_FORCE, VectorIndex, literal
from memory_service.stores.filters import NUMBER, Exists, Filter, In, Range, condition_sql

_NUMBER = f"^{NUMBER}$".replace("\\", r"\\")
_BLOCK_ROWS = 1 << 20
_WITHOUT_INDEX = ", ignore_data_skipping_indices = 'nearest'"


@dataclass(frozen=True)
class Table:
    """A table as all engines have it. version: column by which a row replaces another; by: spreads it over shards.

    sums: column that is added up where rows have one sort key.
    """

    name: str
    columns: str
    tail: str
    version: str = ""
    by: str = "0"
    sums: str = ""


@dataclass(frozen=True)
class Dialect:
    """The SQL of an engine. engine: "chdb", "clickhouse" or "myscale"; cluster: empty for one server.

    max_threads: of a search, 0 for the default; insert_quorum: see StoreOptions. index, brute_force: of MyScale; the
    latter is whether the server has the setting that searches rows without an index.
    """

    engine: str
    cluster: str = ""
    max_threads: int = 0
    insert_quorum: str = "auto"
    index: VectorIndex = field(default_factory=VectorIndex)
    brute_force: bool = False

    def __post_init__(self) -> None:
        if self.cluster and (self.engine == "chdb" or not re.fullmatch(r"[\w.-]+", self.cluster)):
            raise InvalidInput(f"store cluster {self.cluster!r}: expected a cluster's name, for a store on a server")

    @property
    def myscale(self) -> bool:
        """Whether vectors are searched in MyScale's way."""
        return self.engine == "myscale"

    @property
    def shared(self) -> bool:
        """Whether other processes may use the store at the same time."""
        return self.engine != "chdb"

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

    def create(self, table: Table) -> list[str]:
        """The statements that make a table where it is not there."""
        kind = "Replacing" if table.version else "Summing" if table.sums else ""
        arguments = [column for column in (table.version, table.sums) if column]
        if self.cluster:
            path = f"'/clickhouse/tables/{{shard}}/{{database}}/{table.name}'"
            kind, arguments = f"Replicated{kind}", [path, "'{replica}'", *arguments]
        made = (
            f"CREATE TABLE IF NOT EXISTS {self.changed(table.name)} ({table.columns})"
            f" ENGINE = {kind}MergeTree({', '.join(arguments)}) {table.tail}"
        )
        over = (
            f"CREATE TABLE IF NOT EXISTS {table.name}{self.on_cluster} AS {self.stored(table.name)} ENGINE ="
            f" Distributed('{self.cluster}', currentDatabase(), {self.stored(table.name)}, {table.by})"
        )
        return [made, over] if self.cluster else [made]

    def settings(self) -> dict[str, Any]:
        """Settings of every handle."""
        settings: dict[str, Any] = {
            # Statements name keys of documents and ids of references: the default of 256 KiB is too small.
            "max_query_size": 64 << 20,
            # Acknowledged means on disk and searchable: no buffering in the engine.
            "async_insert": 0,
            # The rows of one insert are one block, hence atomic.
            "max_insert_block_size": _BLOCK_ROWS,
            "min_insert_block_size_rows": _BLOCK_ROWS,
            "min_insert_block_size_bytes": 1 << 30,
        }
        if not self.myscale:  # which lacks it
            # Filters compare numbers in texts; by default older servers read 1.5008753E7 as 15008753.000000002.
            settings["precise_float_parsing"] = 1
        if self.cluster:
            settings |= {
                "insert_distributed_sync": 1,  # the same for a distributed table
                "insert_quorum": self.insert_quorum,  # on most replicas before it is acknowledged,
                "insert_quorum_parallel": 1,  # whatever other processes insert meanwhile,
                "load_balancing": "in_order",  # and all read and write at the first replica while it is there
                "replication_alter_partitions_sync": 2,
            }
        return settings

    def deletion(self, table: str, kb: int, rows: Sequence[tuple[int, int]]) -> str:
        """Removes rows by id and version, in the background."""
        where = f"(id, version) IN ({', '.join(f'({int(i)}, {int(version)})' for i, version in rows)})"
        if self.myscale:
            return f"DELETE FROM {self.changed(table)} WHERE kb = {int(kb)} AND {where}"
        return (
            f"DELETE FROM {self.changed(table)} IN PARTITION ID '{int(kb)}' WHERE {where}"
            " SETTINGS lightweight_deletes_sync = 0"
        )

    def forgetting(self, table: str, kb: int, keys: Sequence[str]) -> str:
        """Removes rows by the key of their document, in the background."""
        hexadecimal = ", ".join(f"unhex('{key.encode().hex()}')" for key in keys)
        return f"ALTER TABLE {self.changed(table)} DELETE WHERE kb = {int(kb)} AND document_key IN ({hexadecimal})"

    # Vectors

    def search_settings(self, *, indexed: bool) -> str:
        """The settings of a search: by the vector index or by every row.

        Few threads embedded, where many searches share the machine's cores. Deleted rows are shown, because the index
        finds them too and they would displace others; they are of no newest version.
        """
        settings = f"max_threads = {self.max_threads or (4 if self.shared else 1)}"
        if self.myscale:
            return f"{settings}, {BRUTE_FORCE} = 1" if indexed and self.brute_force else settings
        return f"{settings}, apply_deleted_mask = 0{'' if indexed else _WITHOUT_INDEX}"

    def distance(
        self, vector: np.ndarray, name: str = "vector", *, indexed: bool = False
    ) -> tuple[str, dict[str, Any]]:
        """The cosine distance of `embedding` to a vector as SQL, and its parameters. indexed: as `search_settings`."""
        if self.myscale:
            exact = f"cosineDistance(embedding, {literal(vector)})"
            return self.index.distance(vector) if indexed else exact, {}
        raw = np.ascontiguousarray(vector, "<f4").tobytes()  # as bytes it is a third faster than as text
        return f"cosineDistance(embedding, reinterpret(${name}$, 'Array(Float32)'))", {f"${name}$": raw}

    def vectors(self, vectors: Sequence[np.ndarray]) -> dict[str, list[Any]]:
        """The column of an insert that holds vectors."""
        if self.myscale:
            return {"embedding": [vector.tolist() for vector in vectors]}
        return {"vector": [np.ascontiguousarray(vector, "<f4").tobytes() for vector in vectors]}


def quoted(text: str) -> str:
    """A text as a literal in a statement, not a parameter: those are in the address, which proxies limit and log.

    The client takes `$` for the beginning of a vector's name.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\x24") + "'"


def filter_sql(condition: Filter | None) -> str:
    """A filter (`stores.filters.matches`) as SQL over the column `metadata`."""

    def of_one(one: In | Exists | Range) -> str:
        key = quoted(one.name)
        value, checks = f"metadata[{key}]", [f"mapContains(metadata, {key})"]  # an absent name reads as ''
        if isinstance(one, In):
            checks.append(f"{value} IN ({', '.join(map(quoted, one.values))})")
        elif isinstance(one, Range) and one.of_text:
            checks += [f"{value} {sign} {quoted(str(limit))}" for sign, limit in one.limits.items()]
        elif isinstance(one, Range):
            number = f"toFloat64OrZero({value})"
            checks += [f"match({value}, '{_NUMBER}')", f"isFinite({number})"]
            checks += [f"{number} {sign} {float(limit)!r}" for sign, limit in one.limits.items()]
        return f"({' AND '.join(checks)})"

    return condition_sql(condition, of_one)
