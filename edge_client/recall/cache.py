"""Memories used before, so that they are neither sent nor decompressed again; the least recently used go first.

Two tiers, each bounded in bytes:

    codes     payload bytes as they came, tens of kilobytes each: saves the network
    decoded   keys and values of some of them, some forty times larger: saves the decompression as well

An id names a memory's bytes for ever (`memory.v1.Hit.memory_id`), so nothing here grows stale. A memory is
checked once, before it enters.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import islice

from memory_model.codec.payload import ExplicitMemory
from memory_model.errors import InvalidInput

CODES_SHARE = 0.25
"""Of one bound for both tiers, the part of the codes."""


@dataclass(frozen=True)
class CachedMemory:
    """A checked memory: its payload, CRC-32C of it, and what it decodes to, if that is kept (read-only arrays)."""

    payload: bytes
    crc32c: int
    memory: ExplicitMemory | None = None


class MemoryCache:
    """Thread-safe. codes_bytes, decoded_bytes: the tiers' bounds; 0 keeps nothing there."""

    def __init__(self, codes_bytes: int, decoded_bytes: int) -> None:
        if codes_bytes < 0 or decoded_bytes < 0:
            raise InvalidInput(f"a cache of {codes_bytes} and {decoded_bytes} bytes: 0 is the least")
        self._limits = codes_bytes, decoded_bytes
        self._lock = threading.Lock()
        # Both in the order of their last use. What is decoded has codes here, too.
        self._codes: OrderedDict[int, CachedMemory] = OrderedDict()
        self._decoded: OrderedDict[int, ExplicitMemory] = OrderedDict()
        self._codes_bytes = self._decoded_bytes = 0

    @classmethod
    def of(cls, total_bytes: int) -> MemoryCache:
        """A cache that is never larger than `total_bytes`, both tiers together."""
        codes_bytes = int(CODES_SHARE * total_bytes)
        return cls(codes_bytes, total_bytes - codes_bytes)

    @property
    def held_bytes(self) -> tuple[int, int]:
        """Bytes of codes and of decoded memories."""
        with self._lock:
            return self._codes_bytes, self._decoded_bytes

    def find(self, memory_id: int) -> CachedMemory | None:
        """The memory, decoded if it is kept so, and now the one used last; None if it is not there."""
        with self._lock:
            if memory_id not in self._codes:
                return None
            self._codes.move_to_end(memory_id)
            if memory_id in self._decoded:
                self._decoded.move_to_end(memory_id)
            return self._whole(memory_id)

    def put(self, memory_id: int, found: CachedMemory) -> None:
        """Keep a checked memory as the one used last, and evict others; one that exceeds a bound alone is not kept."""
        codes_limit, decoded_limit = self._limits
        with self._lock:
            self._drop(memory_id)
            if len(found.payload) > codes_limit:
                return
            self._codes[memory_id] = replace(found, memory=None)
            self._codes_bytes += len(found.payload)
            if found.memory is not None and _size(found.memory) <= decoded_limit:
                self._decoded[memory_id] = found.memory
                self._decoded_bytes += _size(found.memory)
            while self._codes_bytes > codes_limit:
                self._drop(next(iter(self._codes)))
            while self._decoded_bytes > decoded_limit:
                self._decoded_bytes -= _size(self._decoded.popitem(last=False)[1])

    def forget(self, memory_id: int) -> None:
        """Drop a memory; no error if it is not there."""
        with self._lock:
            self._drop(memory_id)

    def held(self, limit: int) -> dict[int, CachedMemory]:
        """At most `limit` memories, those used last first. Who holds the dict keeps them, whatever is evicted."""
        with self._lock:
            return {memory_id: self._whole(memory_id) for memory_id in islice(reversed(self._codes), limit)}

    def _whole(self, memory_id: int) -> CachedMemory:
        return replace(self._codes[memory_id], memory=self._decoded.get(memory_id))

    def _drop(self, memory_id: int) -> None:
        if (codes := self._codes.pop(memory_id, None)) is not None:
            self._codes_bytes -= len(codes.payload)
        if (memory := self._decoded.pop(memory_id, None)) is not None:
            self._decoded_bytes -= _size(memory)


def _size(memory: ExplicitMemory) -> int:
    return memory.keys.nbytes + memory.values.nbytes
