"""What was read lately, kept in memory up to a number of bytes; what was not asked for longest goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from memory_service.ops.metrics import CACHE_BYTES, CACHE_LOOKUPS

Value = TypeVar("Value")
Key = tuple[int, int]
"""(number of the knowledge base, memory id): numbers are never used twice, and an id names its bytes for ever."""

ENTRY_BYTES = 300
"""What an entry takes beside its value: key, numbers, places in the table."""


class BoundedCache(Generic[Value]):
    """Values of memories, none of them ever changed. Thread-safe."""

    def __init__(self, name: str, budget_bytes: int, size_of: Callable[[Value], int]) -> None:
        """name: in the metrics. budget_bytes: 0 keeps nothing. size_of: bytes of a value."""
        self._bytes = CACHE_BYTES.labels(name)
        self._found, self._missed = (CACHE_LOOKUPS.labels(name, outcome) for outcome in ("hit", "miss"))
        self.budget_bytes = budget_bytes
        self.hits = 0
        self.misses = 0
        self._used = 0
        self._size_of = size_of
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Of all entries; at most the budget."""
        return self._used

    def get_many(self, kb: int, memory_ids: Iterable[int]) -> dict[int, Value]:
        """Those that are there, by memory id."""
        found: dict[int, Value] = {}
        asked = 0
        with self._lock:
            for memory_id in memory_ids:
                asked += 1
                key = kb, memory_id
                value = self._entries.get(key)
                if value is not None:
                    self._entries.move_to_end(key)
                    found[memory_id] = value
            self.hits += len(found)
            self.misses += asked - len(found)
        if found:
            self._found.inc(len(found))
        if asked > len(found):
            self._missed.inc(asked - len(found))
        return found

    def put_many(self, kb: int, values: Mapping[int, Value]) -> None:
        """Keeps them, each unless it alone is larger than the budget."""
        with self._lock:
            before = self._used
            for memory_id, value in values.items():
                size = ENTRY_BYTES + self._size_of(value)
                if size > self.budget_bytes or (kb, memory_id) in self._entries:
                    continue
                self._entries[kb, memory_id] = value
                self._used += size
                while self._used > self.budget_bytes:
                    _, gone = self._entries.popitem(last=False)
                    self._used -= ENTRY_BYTES + self._size_of(gone)
            self._bytes.inc(self._used - before)
