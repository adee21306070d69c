"""What was read lately, kept in memory up to a number of bytes; what was not asked for longest goes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from cachetools import LRUCache

from memory_service.ops.metrics import CACHE_BYTES, CACHE_LOOKUPS

Value = TypeVar("Value")
ENTRY_BYTES = 300
"""What an entry takes beside its value: key, numbers, places in the table."""


class BoundedCache(Generic[Value]):
    """Values by knowledge base and memory id, which names its bytes for ever. Thread-safe."""

    def __init__(self, name: str, budget_bytes: int, size_of: Callable[[Value], int]) -> None:
        """name: in the metrics. budget_bytes: 0 keeps nothing. size_of: bytes of a value."""
        self._bytes = CACHE_BYTES.labels(name)
        self._lookups = {outcome: CACHE_LOOKUPS.labels(name, outcome) for outcome in ("hit", "miss")}
        self._entries: LRUCache[tuple[int, int], Value] = LRUCache(
            budget_bytes, lambda value: ENTRY_BYTES + size_of(value)
        )
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Of all entries; at most the budget."""
        return int(self._entries.currsize)

    def get_many(self, kb: int, memory_ids: Iterable[int]) -> dict[int, Value]:
        """Those that are there, by memory id."""
        ids = list(memory_ids)
        with self._lock:
            found = {one: value for one in ids if (value := self._entries.get((kb, one))) is not None}
        self._lookups["hit"].inc(len(found))
        self._lookups["miss"].inc(len(ids) - len(found))
        return found

    def put_many(self, kb: int, values: Mapping[int, Value]) -> None:
        """Keeps them, each unless it alone is larger than the budget."""
        with self._lock:
            before = self.used_bytes
            for memory_id, value in values.items():
                if self._entries.getsizeof(value) <= self._entries.maxsize:
                    self._entries[kb, memory_id] = value
            self._bytes.inc(self.used_bytes - before)
