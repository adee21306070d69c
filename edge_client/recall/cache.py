"""`MemoryCache`: checked memories that this device holds, by their ids, as long as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import islice
from weakref import WeakValueDictionary

from memory3.codec.payload import ExplicitMemory


@dataclass(frozen=True)
class CachedMemory:
    """A checked memory: its payload, CRC-32C of it, and what it decodes to (read-only arrays), if that is at hand.

    local: written by this device, so that no request names it.
    """

    payload: bytes
    crc32c: int
    memory: ExplicitMemory | None = None
    local: bool = False


class MemoryCache:
    """Thread-safe. limit_bytes: of all payloads; 0 keeps none."""

    def __init__(self, limit_bytes: int = 64 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._codes: OrderedDict[int, CachedMemory] = OrderedDict()  # in the order of their last use
        self._decoded: WeakValueDictionary[int, ExplicitMemory] = WeakValueDictionary()
        self.held_bytes = 0

    def find(self, memory_id: int) -> CachedMemory | None:
        """The memory, decoded if somebody reads it, and now the one used last; None if it is not there."""
        with self._lock:
            if (found := self._codes.get(memory_id)) is None:
                return None
            self._codes.move_to_end(memory_id)
            return replace(found, memory=self._decoded.get(memory_id))

    def put(self, memory_id: int, found: CachedMemory) -> None:
        """Keep a checked memory as the one used last, and evict others; one larger than the limit is not kept."""
        with self._lock:
            self._drop(memory_id)
            if len(found.payload) > self._limit_bytes:
                return
            self._codes[memory_id] = replace(found, memory=None)
            self.held_bytes += len(found.payload)
            if found.memory is not None:
                self._decoded[memory_id] = found.memory
            while self.held_bytes > self._limit_bytes:
                self._drop(next(iter(self._codes)))

    def forget(self, memory_id: int) -> None:
        """Drop a memory; no error if it is not there."""
        with self._lock:
            self._drop(memory_id)

    def held(self, limit: int) -> dict[int, CachedMemory]:
        """At most `limit` memories of the service, those used last first; the dict keeps them, whatever is evicted."""
        with self._lock:
            known = ((i, found) for i, found in reversed(self._codes.items()) if not found.local)
            return dict(islice(known, limit))

    def _drop(self, memory_id: int) -> None:
        self._decoded.pop(memory_id, None)
        if (codes := self._codes.pop(memory_id, None)) is not None:
            self.held_bytes -= len(codes.payload)
