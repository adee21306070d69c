"""Where references and memories are kept: documents in, the nearest references of a query with their payloads out.

`store` is the interface, `opening` opens one by its address; `local` (files) and `clickhouse` implement it.
"""
