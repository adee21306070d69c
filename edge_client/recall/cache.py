"""Memories met before, so that they are neither sent nor decompressed again: least recently used ones go first.

Two tiers, each bounded in bytes:

    codes     payload bytes as they came, tens of kilobytes each: saves the network
    decoded   keys and values too, some forty times larger: saves the decompression as well

An id names a memory's bytes for ever (`memory.v1.Hit.memory_id`), so nothing here grows stale. A memory is
checked once, before it enters; what is in here is read without another look.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, TypeVar

from memory_model.codec.payload import ExplicitMemory
from memory_model.errors import InvalidInput

CODES_SHARE = 0.25
"""Of one bound for both tiers, what codes get: many memories' codes, and the decoded ones of a conversation."""


@dataclass(frozen=True)
class CachedMemory:
    """A checked memory: its payload, CRC-32C of it, and what it decodes to, if that is kept (read-only arrays)."""

    payload: bytes
    crc32c: int
    memory: ExplicitMemory | None = None

    @property
    def codes_bytes(self) -> int:
        """Bytes of the payload."""
        return len(self.payload)

    @property
    def decoded_bytes(self) -> int:
        """Bytes of keys and values, and of the payload."""
        assert self.memory is not None
        return len(self.payload) + self.memory.keys.nbytes + self.memory.values.nbytes


@dataclass(frozen=True)
class CacheStatistics:
    """Counts since the start, and what is held now.

    decoded_hits, codes_hits: memories that were asked for and there, decoded or as codes. misses: not there.
    evictions: of both tiers; a memory that is larger than its tier's bound is not kept and counts as one.
    """

    decoded_hits: int = 0
    codes_hits: int = 0
    misses: int = 0
    evictions: int = 0
    memories: int = 0
    codes_bytes: int = 0
    decoded_bytes: int = 0


class MemoryCache:
    """Thread-safe. codes_bytes, decoded_bytes: the tiers' bounds; 0 keeps nothing there."""

    def __init__(self, codes_bytes: int, decoded_bytes: int) -> None:
        if codes_bytes < 0 or decoded_bytes < 0:
            raise InvalidInput(f"a cache of {codes_bytes} and {decoded_bytes} bytes: 0 is the least")
        self._codes = _Tier[CachedMemory](codes_bytes, lambda m: m.codes_bytes)
        self._decoded = _Tier[CachedMemory](decoded_bytes, lambda m: m.decoded_bytes)
        self._lock = threading.Lock()
        self._counts = CacheStatistics()

    @classmethod
    def of(cls, total_bytes: int) -> MemoryCache:
        """A cache that is never larger than `total_bytes`, both tiers together."""
        codes_bytes = int(CODES_SHARE * total_bytes)
        return cls(codes_bytes, total_bytes - codes_bytes)

    def find(self, memory_id: int) -> CachedMemory | None:
        """The memory, decoded if it can be, and now the one used last; None if it is not there. Counted."""
        with self._lock:
            codes, decoded = self._codes.use(memory_id), self._decoded.use(memory_id)
            found, counts = decoded or codes, self._counts
            if decoded:
                self._counts = replace(counts, decoded_hits=counts.decoded_hits + 1)
            elif codes:
                self._counts = replace(counts, codes_hits=counts.codes_hits + 1)
            else:
                self._counts = replace(counts, misses=counts.misses + 1)
            return found

    def put(self, memory_id: int, found: CachedMemory) -> None:
        """Keep a checked memory as the one used last; evicts others where a bound would be broken."""
        with self._lock:
            self._codes.put(memory_id, replace(found, memory=None))
            if found.memory is not None:
                self._decoded.put(memory_id, found)

    def forget(self, memory_id: int) -> None:
        """Drop a memory; no error if it is not there."""
        with self._lock:
            self._codes.drop(memory_id)
            self._decoded.drop(memory_id)

    def held(self, limit: int) -> dict[int, CachedMemory]:
        """At most `limit` memories, those used last first. Who holds the dict keeps them, whatever is evicted."""
        with self._lock:
            held = dict(islice(self._decoded.latest(), limit))
            for memory_id, codes in islice(self._codes.latest(), limit):
                if len(held) == limit:
                    break
                held.setdefault(memory_id, codes)
            return held

    def statistics(self) -> CacheStatistics:
        """Counts and sizes, of one moment."""
        with self._lock:
            return replace(
                self._counts, evictions=self._codes.evictions + self._decoded.evictions,
                memories=len(self._codes.entries.keys() | self._decoded.entries.keys()),
                codes_bytes=self._codes.held_bytes, decoded_bytes=self._decoded.held_bytes,
            )  # fmt: skip


Value = TypeVar("Value")


class _Tier(Generic[Value]):
    """Values by id in the order of their last use, bounded in bytes. Not thread-safe."""

    def __init__(self, limit_bytes: int, size: Callable[[Value], int]) -> None:
        self.limit_bytes = limit_bytes
        self.size = size
        self.entries: OrderedDict[int, Value] = OrderedDict()
        self.held_bytes = 0
        self.evictions = 0

    def use(self, key: int) -> Value | None:
        value = self.entries.get(key)
        if value is not None:
            self.entries.move_to_end(key)
        return value

    def put(self, key: int, value: Value) -> None:
        self.drop(key)
        if self.size(value) > self.limit_bytes:
            self.evictions += self.limit_bytes > 0
            return
        self.entries[key] = value
        self.held_bytes += self.size(value)
        while self.held_bytes > self.limit_bytes:
            _, oldest = self.entries.popitem(last=False)
            self.held_bytes -= self.size(oldest)
            self.evictions += 1

    def drop(self, key: int) -> None:
        value = self.entries.pop(key, None)
        if value is not None:
            self.held_bytes -= self.size(value)

    def latest(self) -> Iterator[tuple[int, Value]]:
        return ((key, self.entries[key]) for key in reversed(self.entries))
