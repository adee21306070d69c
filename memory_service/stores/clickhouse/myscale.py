"""MyScale's vector indices: whether the type is one that the server has, and whether they are built."""

from __future__ import annotations

import time

from memory_service.errors import StoreUnavailable
from memory_service.stores.clickhouse.engine import Engine

_INDEX = "nearest"
_BUILD_TIMEOUT_S = 3600.0
_POLL_S = 1.0


def require_vector_indices(engine: Engine, dimensions: set[int], timeout_s: float = _BUILD_TIMEOUT_S) -> None:
    """Waits until the index of every table of references is built.

    Raises StoreUnavailable when a table has an index of another type than the setting says or none (the open-source
    server knows no MSTG), when building failed, or when it takes longer than `timeout_s`. Rows that are not yet in
    an index are found by comparing with each of them, so a write need not wait.
    """
    deadline = time.monotonic() + timeout_s
    for dimension in sorted(dimensions):
        table = engine.dialect.stored(f"references_{dimension}")
        while not _is_built(engine, table):
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"the vector index of {table} is not built after {timeout_s:.0f} s: wait"
                )
            time.sleep(_POLL_S)


def _is_built(engine: Engine, table: str) -> bool:
    rows = engine.rows(
        f"SELECT type, status, latest_failed_part, latest_fail_reason FROM {engine.dialect.system('vector_indices')}"
        " WHERE database = currentDatabase() AND table = {table:String} AND name = {name:String}",
        {"table": table, "name": _INDEX},
    )
    wanted = engine.dialect.index_type
    if not rows:
        raise StoreUnavailable(
            f"{table} has no vector index: this server may have no {wanted}; set another type"
        )
    for kind, status, part, reason in rows:
        if str(kind).upper() != wanted:
            raise StoreUnavailable(
                f"{table} has a vector index of type {kind}, the setting says {wanted}: set store_vector_index={kind},"
                f" or run ALTER TABLE {table} DROP VECTOR INDEX {_INDEX} and add the other"
            )
        if status == "Error" or reason:
            raise StoreUnavailable(f"the vector index of {table} could not be built (part {part}): {reason}")
    return all(status == "Built" for _, status, _, _ in rows)
