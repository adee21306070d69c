"""The store in a ClickHouse engine: a ClickHouse server or MyScale; ClickHouse as a library in tests and trials."""
