"""Numbered migrations of the ClickHouse tables: each is applied once and recorded in the table `migrations`.

A module `m001_…` has STATEMENTS; with PER_DIMENSION = True they hold `{dimension}` and run once for every length of
vectors in the store. MYSCALE_STATEMENTS stand in for them on MyScale, with `{index}` for the type of the vector index.

Migrations only add, and their statements can be repeated, also by several processes at once: there is no lock, and a
process of an older release goes on while a newer one migrates. A released migration is never edited: a change of the
tables is the next number.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import time
from dataclasses import dataclass

from memory_service.errors import StoreUnavailable
from memory_service.ops.logs import logger
from memory_service.stores.clickhouse.dialect import Dialect
from memory_service.stores.clickhouse.engine import Engine

RECORDS = """
    CREATE TABLE IF NOT EXISTS migrations (
        number UInt32, dimension UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
    ) ENGINE = MergeTree ORDER BY (number, dimension)
    SETTINGS non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1
"""
_ATTEMPTS = 5
_PAUSE_S = 1.0


@dataclass(frozen=True)
class Migration:
    """One numbered change of the tables."""

    number: int
    name: str
    statements: tuple[str, ...]
    myscale_statements: tuple[str, ...]
    per_dimension: bool

    def rendered(self, dialect: Dialect, dimension: int) -> list[str]:
        """The statements as an engine runs them."""
        statements = self.myscale_statements if dialect.myscale else self.statements
        if self.per_dimension:
            statements = tuple(s.format(dimension=dimension, index=dialect.index_type) for s in statements)
        return [said for statement in statements for said in dialect.statements(statement)]


def migrations() -> list[Migration]:
    """All migrations in order."""
    found = []
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{name}")
        statements = tuple(module.STATEMENTS)
        myscale = tuple(getattr(module, "MYSCALE_STATEMENTS", statements))
        per_dimension = bool(getattr(module, "PER_DIMENSION", False))
        found.append(Migration(int(name[1:4]), name, statements, myscale, per_dimension))
    return found


def missing(engine: Engine, dimensions: set[int]) -> list[tuple[Migration, int]]:
    """Migrations that the store lacks, and the dimensions they are for. `dimensions`: lengths of vectors in use.

    Raises StoreUnavailable for tables from before the first release, which no migration leads on from.
    """
    tables = {
        str(row[0])
        for row in engine.rows("SELECT name FROM system.tables WHERE database = currentDatabase()")
    }
    if engine.dialect.stored("totals") in tables:
        raise StoreUnavailable(
            "the store's tables are from before release 0.1.0: export it with the version that wrote it, and restore"
            " that backup into an empty store"
        )
    done = set()
    if engine.dialect.stored("migrations") in tables:
        done = {(int(row[0]), int(row[1])) for row in engine.rows("SELECT number, dimension FROM migrations")}
    return [
        (migration, dimension)
        for migration in migrations()
        for dimension in (sorted(dimensions) if migration.per_dimension else [0])
        if (migration.number, dimension) not in done
    ]


def migrate(engine: Engine, dimensions: set[int]) -> list[str]:
    """Applies what is missing; returns the names of what was applied.

    Several processes may do so at the same time: each statement is without effect the second time. A server may refuse
    two changes of a table at once, so it is tried again.
    """
    if engine.dialect.myscale:
        for dimension in dimensions:
            require_vector_index(engine, dimension)
    applied: list[str] = []
    if not missing(engine, dimensions):
        return applied
    for statement in engine.dialect.statements(RECORDS):
        engine.command(statement)
    for attempt in range(_ATTEMPTS):
        try:
            for migration, dimension in missing(engine, dimensions):
                for statement in migration.rendered(engine.dialect, dimension):
                    engine.command(statement)
                record = {"number": migration.number, "dimension": dimension, "name": migration.name}
                engine.insert("migrations", {name: [value] for name, value in record.items()})
                applied.append(migration.name)
                logger().info("migrated", migration=migration.name, dimension=dimension)
            break
        except StoreUnavailable:
            if not engine.dialect.shared or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(random.uniform(0.5, 1.5) * _PAUSE_S)
    return applied


def require_vector_index(engine: Engine, dimension: int) -> None:
    """Raises StoreUnavailable where MyScale's index is of another type than is set, or could not be built.

    The open-source server has no MSTG. Rows that are not in the index yet are found by comparing with each of them.
    """
    table, wanted = engine.dialect.stored(f"references_{dimension}"), engine.dialect.index_type
    rows = engine.rows(
        f"SELECT upper(type), latest_fail_reason FROM {engine.dialect.system('vector_indices')}"
        " WHERE database = currentDatabase() AND table = {table:String} AND name = 'nearest'",
        {"table": table},
    )
    for kind, reason in rows:
        if kind != wanted or reason:
            raise StoreUnavailable(
                f"{table} has a vector index of type {kind} {reason}, the setting says {wanted}: set another one,"
                f" or run ALTER TABLE {table} DROP VECTOR INDEX nearest and add the other"
            )
