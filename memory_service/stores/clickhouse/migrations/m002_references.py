"""The references of one length of vectors: an index of vectors has one length, so each length has a table.

The knowledge base is a partition and no part of the sort key: a filter on the first key column would make the engine
leave the vector index and compare with every row. `words` are hashes of the text's words, uint32. `vector` takes
float32 as bytes, which a client sends at once where lists of 50,000 vectors would take it half a minute.
"""

PER_DIMENSION = True

STATEMENTS = [
    """
    CREATE TABLE IF NOT EXISTS references_{dimension} (
        kb UInt32, id UInt64, version UInt64, document_key String, title String, chunk UInt32, text String,
        words String, metadata Map(String, String), crc32c UInt32, stored_at DateTime64(6, 'UTC') DEFAULT now64(6),
        vector String EPHEMERAL,
        embedding Array(BFloat16) DEFAULT CAST(reinterpret(vector, 'Array(Float32)'), 'Array(BFloat16)') CODEC(NONE),
        INDEX nearest embedding
            TYPE vector_similarity('hnsw', 'cosineDistance', {dimension}, 'bf16', 32, 128) GRANULARITY 100000000,
        INDEX metadata_names mapKeys(metadata) TYPE bloom_filter GRANULARITY 1,
        INDEX metadata_values mapValues(metadata) TYPE bloom_filter GRANULARITY 1,
        CONSTRAINT length CHECK length(embedding) = {dimension}
    ) ENGINE = MergeTree PARTITION BY kb ORDER BY id
    SETTINGS index_granularity = 256, non_replicated_deduplication_window = 1000,
        fsync_after_insert = 1, fsync_part_directory = 1
    """,
]

# MyScale is a branch of ClickHouse 23.3: vectors of float32, its own kind of index, which is built in the background.
MYSCALE_STATEMENTS = [
    """
    CREATE TABLE IF NOT EXISTS references_{dimension} (
        kb UInt32, id UInt64, version UInt64, document_key String, title String, chunk UInt32, text String,
        words String, metadata Map(String, String), crc32c UInt32, stored_at DateTime64(6, 'UTC') DEFAULT now64(6),
        embedding Array(Float32),
        INDEX metadata_names mapKeys(metadata) TYPE bloom_filter GRANULARITY 1,
        INDEX metadata_values mapValues(metadata) TYPE bloom_filter GRANULARITY 1,
        CONSTRAINT length CHECK length(embedding) = {dimension}
    ) ENGINE = MergeTree PARTITION BY kb ORDER BY id
    SETTINGS index_granularity = 256, non_replicated_deduplication_window = 1000,
        fsync_after_insert = 1, fsync_part_directory = 1
    """,
    "ALTER TABLE references_{dimension} ADD VECTOR INDEX IF NOT EXISTS nearest embedding"
    " TYPE {index}('metric_type=Cosine')",
]
