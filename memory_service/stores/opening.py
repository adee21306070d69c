"""Opens the store at an address."""

from __future__ import annotations

from collections.abc import Callable

from memory_service.stores.address import StoreAddress, StoreOptions, parse_address
from memory_service.stores.store import Store


def open_store(url: str, options: StoreOptions | None = None) -> Store:
    """Opens the store at an address (`stores.address`), creating it where there is none.

    Raises InvalidInput for another form of address and StoreUnavailable when the store cannot be used.
    """
    address = parse_address(url)
    return STORES[address.engine](address, options or StoreOptions())


def _local(address: StoreAddress, options: StoreOptions) -> Store:
    from memory_service.stores.local.store import LocalStore  # FAISS takes a moment to import

    return LocalStore(address.path, options.retry_s)


def _clickhouse(address: StoreAddress, options: StoreOptions) -> Store:
    from memory_service.stores.clickhouse.store import ClickHouseStore  # the engine takes a second to import

    return ClickHouseStore(address, options)


STORES: dict[str, Callable[[StoreAddress, StoreOptions], Store]] = {
    "file": _local,
    "chdb": _clickhouse,
    "clickhouse": _clickhouse,
    "myscale": _clickhouse,
}
"""What opens a store, by the engine of its address."""
