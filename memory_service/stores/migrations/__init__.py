"""Numbered migrations of the ClickHouse tables: each is applied once and recorded in the table `migrations`.

A module `m001_…` has STATEMENTS; with PER_DIMENSION = True they hold `{dimension}` and run once for every length of
vectors in the store. A released migration is never edited: a change of the tables is the next number.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

_RECORD = """
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
    per_dimension: bool


def migrations() -> list[Migration]:
    """All migrations in order."""
    found = []
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        number = int(module_info.name[1:4])
        per_dimension = bool(getattr(module, "PER_DIMENSION", False))
        found.append(Migration(number, module_info.name, tuple(module.STATEMENTS), per_dimension))
    return sorted(found, key=lambda migration: migration.number)


def migrate(client: Any, dimensions: set[int]) -> list[str]:
    """Applies what the store behind `client` (clickhouse-connect) lacks; returns the names of what was applied.

    `dimensions`: lengths of vectors that need their tables. Statements are repeatable, so a migration that was cut off
    before it was recorded is simply applied again.
    """
    client.command(_RECORD)
    done = {(row[0], row[1]) for row in client.query("SELECT number, dimension FROM migrations").result_rows}
    applied = []
    for migration in migrations():
        for dimension in sorted(dimensions) if migration.per_dimension else [0]:
            if (migration.number, dimension) in done:
                continue
            for statement in migration.statements:
                client.command(
                    statement.format(dimension=dimension) if migration.per_dimension else statement
                )
            row = [migration.number, dimension, migration.name]
            client.insert("migrations", [row], column_names=["number", "dimension", "name"])
            applied.append(migration.name)
    return applied
