"""The tables of a ClickHouse store, as numbered migrations: each is applied once and recorded in `migrations`.

Migrations only add, and their statements can be repeated, also by several processes at once: there is no lock, and a
process of an older release goes on while a newer one migrates. A released migration is never edited: a change of the
tables is the next number.

Partitions are knowledge bases, so that one can be dropped, counted and found damaged alone. The knowledge base is no
part of the references' sort key: a filter on the first key column would make the engine leave the vector index and
compare with every row. Reading a few payloads of some 20 KB at random needs tiny granules and no compression: codes do
not compress, and a default granule of 8192 rows would read hundreds of times too much. Every table remembers the tokens
of its last inserts, so that an insert sent twice is stored once; replicated tables do so by themselves.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

from memory_service.errors import StoreUnavailable
from memory_service.ops.logs import logger
from memory_service.stores.clickhouse.dialect import Dialect
from memory_service.stores.clickhouse.engine import Engine

_ATTEMPTS = 5
_PAUSE_S = 1.0
_DURABLE = "non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1"

RECORDS = f"""
    CREATE TABLE IF NOT EXISTS migrations (
        number UInt32, dimension UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
    ) ENGINE = MergeTree ORDER BY (number, dimension) SETTINGS {_DURABLE}
"""

# One row when a knowledge base is created (change 1) and one when it is dropped (change 2).
_KNOWLEDGE_BASES = f"""
    CREATE TABLE IF NOT EXISTS knowledge_bases (
        number UInt32, name String, description String,
        model_id String, codec_id String, memory_format_id String, embedder_id String, dimension UInt32,
        created_at DateTime64(3, 'UTC'), creator UInt64, dropped UInt8, change UInt8
    ) ENGINE = ReplacingMergeTree(change) ORDER BY number SETTINGS {_DURABLE}
"""
# One row for each version of a document, and for its deletion: the commit. The newest version is the document.
_DOCUMENTS = f"""
    CREATE TABLE IF NOT EXISTS documents (
        kb UInt32, key String, version UInt64, deleted UInt8, content_hash FixedString(32), title String,
        metadata Map(String, String), memory_ids Array(UInt64), text_bytes UInt64, payload_bytes UInt64,
        stored_at DateTime64(6, 'UTC') DEFAULT now64(6)
    ) ENGINE = ReplacingMergeTree(version) PARTITION BY kb ORDER BY (kb, key)
    SETTINGS index_granularity = 256, {_DURABLE}
"""
_PAYLOADS = f"""
    CREATE TABLE IF NOT EXISTS payloads (
        kb UInt32, id UInt64, version UInt64, payload String CODEC(NONE)
    ) ENGINE = MergeTree PARTITION BY kb ORDER BY id
    SETTINGS index_granularity = 4, index_granularity_bytes = 0, min_bytes_for_wide_part = 0,
        min_compress_block_size = 4096, max_compress_block_size = 65536, {_DURABLE}
"""
# An index of vectors has one length, so each length has a table. `words` are hashes of the text's words, uint32.
_REFERENCES = f"""
    CREATE TABLE IF NOT EXISTS references_{{dimension}} (
        kb UInt32, id UInt64, version UInt64, document_key String, title String, chunk UInt32, text String,
        words String, metadata Map(String, String), crc32c UInt32, stored_at DateTime64(6, 'UTC') DEFAULT now64(6),
        {{vector}},
        INDEX metadata_names mapKeys(metadata) TYPE bloom_filter GRANULARITY 1,
        INDEX metadata_values mapValues(metadata) TYPE bloom_filter GRANULARITY 1,
        CONSTRAINT length CHECK length(embedding) = {{dimension}}
    ) ENGINE = MergeTree PARTITION BY kb ORDER BY id SETTINGS index_granularity = 256, {_DURABLE}
"""
# `vector` takes float32 as bytes, which a client sends at once where lists of 50,000 vectors would take half a minute.
_VECTOR = """vector String EPHEMERAL,
        embedding Array(BFloat16) DEFAULT CAST(reinterpret(vector, 'Array(Float32)'), 'Array(BFloat16)') CODEC(NONE),
        INDEX nearest embedding
            TYPE vector_similarity('hnsw', 'cosineDistance', {dimension}, 'bf16', 32, 128) GRANULARITY 100000000"""
# MyScale is a branch of ClickHouse 23.3: vectors of float32, its own kind of index, which is built in the background.
_MYSCALE_INDEX = (
    "ALTER TABLE references_{dimension} ADD VECTOR INDEX IF NOT EXISTS nearest embedding"
    " TYPE SCANN('metric_type=Cosine')"
)


@dataclass(frozen=True)
class Migration:
    """One numbered change of the tables. per_dimension: `{dimension}` stands for each length of vectors in use."""

    number: int
    name: str
    statements: tuple[str, ...]
    myscale_statements: tuple[str, ...] = ()
    per_dimension: bool = False

    def rendered(self, dialect: Dialect, dimension: int) -> list[str]:
        """The statements as an engine runs them."""
        statements: Iterable[str] = (dialect.myscale and self.myscale_statements) or self.statements
        if self.per_dimension:
            statements = [statement.replace("{dimension}", str(dimension)) for statement in statements]
        return [said for statement in statements for said in dialect.statements(statement)]


MIGRATIONS = [
    Migration(1, "tables", (_KNOWLEDGE_BASES, _DOCUMENTS, _PAYLOADS)),
    Migration(
        2, "references", (_REFERENCES.replace("{vector}", _VECTOR),),
        (_REFERENCES.replace("{vector}", "embedding Array(Float32)"), _MYSCALE_INDEX), per_dimension=True,
    ),
]  # fmt: skip


def _missing(engine: Engine, dimensions: set[int]) -> list[tuple[Migration, int]]:
    """Migrations that the store lacks, and the dimensions they are for."""
    exists = f"EXISTS TABLE {engine.dialect.stored('migrations')}"
    rows = engine.rows("SELECT number, dimension FROM migrations") if engine.rows(exists)[0][0] else []
    done = {(int(number), int(dimension)) for number, dimension in rows}
    return [
        (migration, dimension)
        for migration in MIGRATIONS
        for dimension in (sorted(dimensions) if migration.per_dimension else [0])
        if (migration.number, dimension) not in done
    ]


def migrate(engine: Engine, dimensions: set[int]) -> list[str]:
    """Applies what is missing; returns the names of what was applied. dimensions: lengths of vectors in use.

    Several processes may do so at the same time: each statement is without effect the second time. A server may refuse
    two changes of a table at once, so it is tried again.
    """
    applied: list[str] = []
    for attempt in range(_ATTEMPTS):
        try:
            for migration, dimension in _missing(engine, dimensions):
                record = {"number": migration.number, "dimension": dimension, "name": migration.name}
                for statement in [
                    *engine.dialect.statements(RECORDS),
                    *migration.rendered(engine.dialect, dimension),
                ]:
                    engine.command(statement)
                engine.insert("migrations", {name: [value] for name, value in record.items()})
                applied.append(migration.name)
                logger().info("migrated", migration=migration.name, dimension=dimension)
            break
        except StoreUnavailable:
            if not engine.dialect.shared or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(random.uniform(0.5, 1.5) * _PAUSE_S)
    return applied
