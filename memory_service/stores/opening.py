"""Opens the store at an address."""

from __future__ import annotations

from memory_service.stores.address import StoreOptions, parse_address
from memory_service.stores.store import Store


def open_store(url: str, options: StoreOptions | None = None) -> Store:
    """Opens the store at an address (`stores.address`), creating it where there is none.

    Raises InvalidInput for another form of address and StoreUnavailable when the store cannot be used.
    """
    address, options = parse_address(url), options or StoreOptions()
    if address.engine == "file":
        from memory_service.stores.local.store import LocalStore  # FAISS takes a moment to import

        return LocalStore(address.path, options.retry_s)
    from memory_service.stores.clickhouse.store import ClickHouseStore  # the engine takes a second to import

    return ClickHouseStore(address, options)
