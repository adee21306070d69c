"""The tables of every store: what is kept whatever the embedder.

Partitions are knowledge bases, so that one can be dropped, counted and found damaged alone. Reading a few
payloads of some 39 KB at random asks for tiny granules and no compression: codes do not compress, and a default
granule of 8192 rows would read 184 times too much.
"""

STATEMENTS = [
    """
    CREATE TABLE IF NOT EXISTS knowledge_bases (
        number UInt32, name String, description String,
        model_id String, codec_id String, memory_format_id String, embedder_id String, dimension UInt32,
        created_at DateTime64(3, 'UTC'), dropped UInt8, change UInt64
    ) ENGINE = ReplacingMergeTree(change) ORDER BY number
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
    """,
    # One row for the newest version of each document; a batch is written for all its documents in one block.
    """
    CREATE TABLE IF NOT EXISTS documents (
        kb UInt32, key String, batch UInt64, deleted UInt8, content_hash FixedString(32), title String,
        metadata Map(String, String), memory_ids Array(UInt64), text_bytes UInt64, payload_bytes UInt64,
        stored_at DateTime64(3, 'UTC')
    ) ENGINE = ReplacingMergeTree(batch) PARTITION BY kb ORDER BY (kb, key)
    SETTINGS index_granularity = 256, fsync_after_insert = 1, fsync_part_directory = 1
    """,
    """
    CREATE TABLE IF NOT EXISTS payloads (
        kb UInt32, id UInt64, payload String CODEC(NONE)
    ) ENGINE = MergeTree PARTITION BY kb ORDER BY id
    SETTINGS index_granularity = 4, index_granularity_bytes = 0, min_bytes_for_wide_part = 0,
        min_compress_block_size = 4096, max_compress_block_size = 65536,
        fsync_after_insert = 1, fsync_part_directory = 1
    """,
    # What a batch is about to add and remove; written first, so that kill -9 in between can be undone or finished.
    """
    CREATE TABLE IF NOT EXISTS intents (
        kb UInt32, batch UInt64, added Array(UInt64), removed Array(UInt64)
    ) ENGINE = MergeTree PARTITION BY kb ORDER BY batch
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
    """,
    # Written last: the newest finished batch and what the other tables must hold after it (digest: XOR of ids).
    """
    CREATE TABLE IF NOT EXISTS totals (
        kb UInt32, batch UInt64, documents UInt64, memories UInt64, digest UInt64
    ) ENGINE = ReplacingMergeTree(batch) PARTITION BY kb ORDER BY kb
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
    """,
]
