"""The tables of every store, whatever the embedder.

Partitions are knowledge bases, so that one can be dropped, counted and found damaged alone. Reading a few payloads of
some 20 KB at random needs tiny granules and no compression: codes do not compress, and a default granule of 8192 rows
would read hundreds of times too much. Every table remembers the tokens of its last inserts, so that an insert sent
twice is stored once; on replicated tables the server does this by itself.
"""

STATEMENTS = [
    # One row when a knowledge base is created (change 1) and one when it is dropped (change 2).
    """
    CREATE TABLE IF NOT EXISTS knowledge_bases (
        number UInt32, name String, description String,
        model_id String, codec_id String, memory_format_id String, embedder_id String, dimension UInt32,
        created_at DateTime64(3, 'UTC'), creator UInt64, dropped UInt8, change UInt8
    ) ENGINE = ReplacingMergeTree(change) ORDER BY number
    SETTINGS non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1
    """,
    # One row for each version of a document, and for its deletion: the commit. The newest version is the document.
    """
    CREATE TABLE IF NOT EXISTS documents (
        kb UInt32, key String, version UInt64, deleted UInt8, content_hash FixedString(32), title String,
        metadata Map(String, String), memory_ids Array(UInt64), text_bytes UInt64, payload_bytes UInt64,
        stored_at DateTime64(6, 'UTC') DEFAULT now64(6)
    ) ENGINE = ReplacingMergeTree(version) PARTITION BY kb ORDER BY (kb, key)
    SETTINGS index_granularity = 256, non_replicated_deduplication_window = 1000,
        fsync_after_insert = 1, fsync_part_directory = 1
    """,
    """
    CREATE TABLE IF NOT EXISTS payloads (
        kb UInt32, id UInt64, version UInt64, payload String CODEC(NONE)
    ) ENGINE = MergeTree PARTITION BY kb ORDER BY id
    SETTINGS index_granularity = 4, index_granularity_bytes = 0, min_bytes_for_wide_part = 0,
        min_compress_block_size = 4096, max_compress_block_size = 65536,
        non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1
    """,
]
