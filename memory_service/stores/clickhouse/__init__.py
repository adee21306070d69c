"""The store in a ClickHouse engine: embedded chdb, a ClickHouse server or MyScale."""
