"""The tables of a ClickHouse store, as numbered migrations: each is applied once and recorded in `migrations`.

The statements of migrations can be repeated, also by several processes at once: there is no lock, and a process of an
older release goes on while a newer one migrates. A released migration is never edited: a change of the
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
from collections.abc import Callable
from dataclasses import dataclass

from memory_service.errors import StoreUnavailable
from memory_service.stores.clickhouse.dialect import Dialect, Table
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.old_formats import UNWRITTEN_MASK
from memory_service.telemetry.logs import logger

_ATTEMPTS = 5
_PAUSE_S = 1.0
_DURABLE = "non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1"

RECORDS = Table(
    "migrations",
    "number UInt32, dimension UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3)",
    f"ORDER BY (number, dimension) SETTINGS {_DURABLE}",
)
# One row when a knowledge base is created (change 1) and one when it is dropped (change 2).
_KNOWLEDGE_BASES = Table(
    "knowledge_bases",
    "number UInt32, name String, description String, model_id String, codec_id String, memory_format_id String,"
    " embedder_id String, dimension UInt32, created_at DateTime64(3, 'UTC'), creator UInt64, dropped UInt8,"
    " change UInt8",
    f"ORDER BY number SETTINGS {_DURABLE}",
    version="change",
)
# One row for each version of a document, and for its deletion: the commit. The newest version is the document.
_DOCUMENTS = Table(
    "documents",
    "kb UInt32, key String, version UInt64, deleted UInt8, content_hash FixedString(32), title String,"
    " metadata Map(String, String), memory_ids Array(UInt64), text_bytes UInt64, payload_bytes UInt64,"
    " stored_at DateTime64(6, 'UTC') DEFAULT now64(6)",
    f"PARTITION BY kb ORDER BY (kb, key) SETTINGS index_granularity = 256, {_DURABLE}",
    version="version",
    by="kb",
)
_PAYLOADS = Table(
    "payloads",
    "kb UInt32, id UInt64, version UInt64, payload String CODEC(NONE)",
    "PARTITION BY kb ORDER BY id SETTINGS index_granularity = 4, index_granularity_bytes = 0,"
    f" min_bytes_for_wide_part = 0, min_compress_block_size = 4096, max_compress_block_size = 65536, {_DURABLE}",
    by="id",
)
# `vector` takes float32 as bytes, which a client sends at once where lists of 50,000 vectors would take half a minute.
_VECTOR = (
    "vector String EPHEMERAL,"
    " embedding Array(BFloat16) DEFAULT CAST(reinterpret(vector, 'Array(Float32)'), 'Array(BFloat16)') CODEC(NONE),"
    " INDEX nearest embedding"
    " TYPE vector_similarity('hnsw', 'cosineDistance', {dimension}, 'bf16', 32, 128) GRANULARITY 100000000"
)


# Reads of references, one row an insert until the engine adds them up.
_USES = Table(
    "uses",
    "kb UInt32, document_key String, chunk UInt32, reads UInt64",
    f"PARTITION BY kb ORDER BY (kb, document_key, chunk) SETTINGS {_DURABLE}",
    by="kb",
    sums="reads",
)


def _tables(dialect: Dialect, dimension: int) -> list[str]:
    return [statement for table in (_KNOWLEDGE_BASES, _DOCUMENTS, _PAYLOADS) for statement in dialect.create(table)]


def _references(dialect: Dialect, dimension: int) -> list[str]:
    """An index of vectors has one length, so each length has a table. `words` are hashes of the text's, uint32.

    MyScale is a branch of ClickHouse 23.3: vectors of float32, its own kind of index, which is built in the background.
    """
    vector = "embedding Array(Float32)" if dialect.myscale else _VECTOR.replace("{dimension}", str(dimension))
    name = f"references_{dimension}"
    columns = (
        "kb UInt32, id UInt64, version UInt64, document_key String, title String, chunk UInt32, text String,"
        " words String, metadata Map(String, String), crc32c UInt32, stored_at DateTime64(6, 'UTC') DEFAULT now64(6),"
        f" {vector}, INDEX metadata_names mapKeys(metadata) TYPE bloom_filter GRANULARITY 1,"
        " INDEX metadata_values mapValues(metadata) TYPE bloom_filter GRANULARITY 1,"
        f" CONSTRAINT length CHECK length(embedding) = {dimension}"
    )
    tail = f"PARTITION BY kb ORDER BY id SETTINGS index_granularity = 256, {_DURABLE}"
    index = [dialect.index.added_to(dialect.changed(name))] if dialect.myscale else []
    return dialect.create(Table(name, columns, tail, by="id")) + index


def _written_column(dialect: Dialect, dimension: int) -> list[str]:
    """Whether the memories of a document are written; its hash, if they are not, becomes that of its content.

    In rows of older releases, which know no such column, it reads 2 where they are not, until the hash was changed.
    """
    column = "written UInt8 DEFAULT if(payload_bytes > 0, 1, 2)"
    add = "ALTER TABLE {} ADD COLUMN IF NOT EXISTS " + column
    tables = [_DOCUMENTS.name + dialect.on_cluster] if dialect.cluster else []
    content_hash = f"bitXor(content_hash, toFixedString(unhex('{UNWRITTEN_MASK.hex()}'), 32))"
    change = (
        f"ALTER TABLE {dialect.changed(_DOCUMENTS.name)} UPDATE content_hash = {content_hash}, written = 0"
        " WHERE written = 2 AND deleted = 0 SETTINGS mutations_sync = 2"
    )
    return [*(add.format(table) for table in (dialect.changed(_DOCUMENTS.name), *tables)), change]


def _uses(dialect: Dialect, dimension: int) -> list[str]:
    return dialect.create(_USES)


@dataclass(frozen=True)
class Migration:
    """One change of the tables. statements: of an engine, for a length of vectors if it is for each one in use."""

    name: str
    statements: Callable[[Dialect, int], list[str]]
    per_dimension: bool = False


MIGRATIONS = [
    Migration("tables", _tables),
    Migration("references", _references, per_dimension=True),
    Migration("written column", _written_column),
    Migration("uses", _uses),
]
"""Their numbers count from one."""


def _apply(engine: Engine, dimensions: set[int]) -> None:
    exists = f"EXISTS TABLE {engine.dialect.stored(RECORDS.name)}"
    rows = engine.rows("SELECT number, dimension FROM migrations") if engine.rows(exists)[0][0] else []
    done = {(int(number), int(dimension)) for number, dimension in rows}
    for number, migration in enumerate(MIGRATIONS, 1):
        for dimension in sorted(dimensions) if migration.per_dimension else [0]:
            if (number, dimension) in done:
                continue
            for statement in engine.dialect.create(RECORDS) + migration.statements(engine.dialect, dimension):
                engine.command(statement)
            engine.insert("migrations", {"number": [number], "dimension": [dimension], "name": [migration.name]})
            logger().info("migrated", migration=migration.name, dimension=dimension)


def migrate(engine: Engine, dimensions: set[int]) -> None:
    """Applies what is missing. dimensions: lengths of vectors in use.

    Several processes may do so at the same time: each statement is without effect the second time. A server may refuse
    two changes of a table at once, so it is tried again.
    """
    for attempt in range(_ATTEMPTS):
        try:
            _apply(engine, dimensions)
            return
        except StoreUnavailable:
            if not engine.dialect.shared or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(random.uniform(0.5, 1.5) * _PAUSE_S)
