"""Numbered migrations of the ClickHouse tables: each is applied once and recorded in the table `migrations`.

A module `m001_…` has STATEMENTS; with PER_DIMENSION = True they hold `{dimension}` and run once for every length of
vectors in the store. MYSCALE_STATEMENTS stand in for them on MyScale, with `{index}` for the type of the vector
index. With ONE_SERVER = True they are for a server's plain tables: neither embedded nor replicated. A released
migration is never edited: a change of the tables is the next number.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

from memory_service.errors import StoreUnavailable
from memory_service.ops.logs import logger
from memory_service.stores.clickhouse.dialect import Dialect

RECORD = """
CREATE TABLE IF NOT EXISTS migrations (
    number UInt32, dimension UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = MergeTree ORDER BY (number, dimension)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
"""


@dataclass(frozen=True)
class Migration:
    """One numbered change of the tables."""

    number: int
    name: str
    statements: tuple[str, ...]
    myscale_statements: tuple[str, ...]
    per_dimension: bool
    one_server: bool

    def rendered(self, dialect: Dialect, dimension: int) -> list[str]:
        """The statements as an engine runs them."""
        if self.one_server and (not dialect.shared or dialect.cluster):
            return []
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
        found.append(
            Migration(
                int(module_info.name[1:4]), module_info.name, statements,
                tuple(getattr(module, "MYSCALE_STATEMENTS", statements)),
                bool(getattr(module, "PER_DIMENSION", False)), bool(getattr(module, "ONE_SERVER", False)),
            )
        )  # fmt: skip
    return sorted(found, key=lambda migration: migration.number)


def missing(client: Any, dimensions: set[int]) -> list[tuple[Migration, int]]:
    """What the store behind `client` (clickhouse-connect) lacks: migrations and the dimensions they are for.

    `dimensions`: lengths of vectors that need their tables. Raises StoreUnavailable for a store of a newer release:
    what that one changed is not known here.
    """
    rows = client.query("SELECT number, dimension, name FROM migrations").result_rows
    done, known = {(row[0], row[1]) for row in rows}, migrations()
    if newer := sorted({row[2] for row in rows if row[0] > known[-1].number}):
        raise StoreUnavailable(
            f"the store was written by a newer release, which made {', '.join(newer)}: start that release, or restore a"
            " backup into an empty store"
        )
    return [
        (migration, dimension)
        for migration in known
        for dimension in (sorted(dimensions) if migration.per_dimension else [0])
        if (migration.number, dimension) not in done
    ]


def migrate(client: Any, dialect: Dialect, dimensions: set[int]) -> list[str]:
    """Applies what is missing; returns the names of what was applied.

    Statements are repeatable, so a migration that was cut off before it was recorded is simply applied again.
    """
    for statement in dialect.statements(RECORD):
        client.command(statement)
    applied = []
    for migration, dimension in missing(client, dimensions):
        for statement in migration.rendered(dialect, dimension):
            client.command(statement)
        row = [migration.number, dimension, migration.name]
        client.insert("migrations", [row], column_names=["number", "dimension", "name"])
        applied.append(migration.name)
        logger().info("migrated", migration=migration.name, dimension=dimension)
    return applied
