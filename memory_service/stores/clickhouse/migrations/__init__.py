"""Numbered migrations of the ClickHouse tables: each is applied once and recorded in the table `migrations`.

A module `m001_…` has STATEMENTS; with PER_DIMENSION = True they hold `{dimension}` and run once for every length of
vectors in the store. MYSCALE_STATEMENTS stand in for them on MyScale, with `{index}` for the type of the vector index.

Migrations only add, and their statements can be repeated: a process of an older release serves on while a newer one
migrates. A released migration is never edited: a change of the tables is the next number.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memory_service.errors import StoreUnavailable
from memory_service.ops.logs import logger
from memory_service.stores.clickhouse.dialect import Dialect
from memory_service.stores.clickhouse.engine import Engine

RECORDS = (
    """
    CREATE TABLE IF NOT EXISTS migrations (
        number UInt32, dimension UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
    ) ENGINE = MergeTree ORDER BY (number, dimension)
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
    """,
    """
    CREATE TABLE IF NOT EXISTS migration_lock (
        turn UInt32, holder UInt64, held UInt8, at DateTime64(3, 'UTC') DEFAULT now64(3)
    ) ENGINE = MergeTree ORDER BY turn SETTINGS non_replicated_deduplication_window = 1000
    """,
)
LOCK_S = 60.0
"""How long a process that died while it migrated keeps others from it."""
_WAIT_S = 600.0
_POLL_S = 0.2


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
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        statements = tuple(module.STATEMENTS)
        myscale = tuple(getattr(module, "MYSCALE_STATEMENTS", statements))
        per_dimension = bool(getattr(module, "PER_DIMENSION", False))
        found.append(
            Migration(int(module_info.name[1:4]), module_info.name, statements, myscale, per_dimension)
        )
    return sorted(found, key=lambda migration: migration.number)


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
    if {"migrations", "migration_lock"} <= tables:
        done = {(int(row[0]), int(row[1])) for row in engine.rows("SELECT number, dimension FROM migrations")}
    return [
        (migration, dimension)
        for migration in migrations()
        for dimension in (sorted(dimensions) if migration.per_dimension else [0])
        if (migration.number, dimension) not in done
    ]


def migrate(engine: Engine, dimensions: set[int]) -> list[str]:
    """Applies what is missing; returns the names of what was applied. Takes the lock only where something is missing.

    Raises StoreUnavailable when another process migrates for longer than ten minutes.
    """
    if engine.dialect.myscale:
        for dimension in dimensions:
            require_vector_index(engine, dimension)
    if not missing(engine, dimensions):
        return []
    for record in RECORDS:
        for statement in engine.dialect.statements(record):
            engine.command(statement)
    applied = []
    with _lock(engine, lambda: bool(missing(engine, dimensions))) as renew:
        for migration, dimension in missing(engine, dimensions):
            for statement in migration.rendered(engine.dialect, dimension):
                renew()
                engine.command(statement)
            number, name = migration.number, migration.name
            engine.insert("migrations", {"number": [number], "dimension": [dimension], "name": [name]})
            applied.append(migration.name)
            logger().info("migrated", migration=migration.name, dimension=dimension)
    return applied


@contextlib.contextmanager
def _lock(engine: Engine, needed: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Waits until no other process migrates, or nothing is `needed` any more; gives what keeps the lock for longer.

    Each turn has one row, which the first insert with the turn's token makes: the others' are dropped by the server.
    """
    holder, deadline = random.getrandbits(64), time.monotonic() + _WAIT_S

    def newest() -> tuple[int, int, bool]:
        """Turn, holder, and whether it is held."""
        rows = engine.rows(
            f"SELECT turn, holder, held AND at > now64(3) - INTERVAL {LOCK_S:.0f} SECOND"
            " FROM migration_lock ORDER BY turn DESC LIMIT 1"
        )
        return (int(rows[0][0]), int(rows[0][1]), bool(rows[0][2])) if rows else (0, 0, False)

    def take(turn: int, held: int) -> None:
        row = {"turn": [turn], "holder": [holder], "held": [held]}
        engine.insert("migration_lock", row, token=f"turn {turn}")

    def renew() -> None:
        take(newest()[0] + 1, 1)
        if newest()[1] != holder:
            raise StoreUnavailable("another process took the lock on migrations: start again")

    while True:
        turn, _, held = newest()
        if not held:
            take(turn + 1, 1)
            if newest()[1] == holder:
                break
        elif not needed():
            yield renew
            return
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"another process has been migrating the store for {_WAIT_S:.0f} s: wait")
        time.sleep(_POLL_S)
    try:
        yield renew
    finally:
        turn, owner, _ = newest()
        if owner == holder:
            take(turn + 1, 0)


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
