"""The cache keeps what was used last within its bounds, whatever comes, and counts what it does."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.recall.cache import CachedMemory, MemoryCache
from memory_model.codec.payload import ExplicitMemory
from memory_model.errors import InvalidInput

ROW_BYTES = 8  # of a test memory: one row of two float32 in keys or in values


def memory_of(payload_bytes: int, rows: int | None) -> CachedMemory:
    """A memory of that many payload bytes; rows: 2 * ROW_BYTES each when decoded, None for codes alone."""
    keys = None if rows is None else np.zeros((rows, 2), np.float32)
    memory = None if keys is None else ExplicitMemory(keys, keys.copy(), 1)
    return CachedMemory(bytes(payload_bytes), payload_bytes, memory)


@dataclass
class PlainModel:
    """What a tier is said to do, in the plainest way: a list of (id, bytes), the one used last at the end."""

    limit: int
    entries: list[tuple[int, int]] = field(default_factory=list)
    evictions: int = 0

    def put(self, key: int, size: int) -> None:
        self.entries = [e for e in self.entries if e[0] != key]
        self.entries.append((key, size))
        if size > self.limit:
            self.entries.pop()
            self.evictions += self.limit > 0
        while sum(s for _, s in self.entries) > self.limit:
            del self.entries[0]
            self.evictions += 1

    def use(self, key: int) -> bool:
        found = [e for e in self.entries if e[0] == key]
        self.entries = [e for e in self.entries if e[0] != key] + found
        return bool(found)

    def drop(self, key: int) -> None:
        self.entries = [e for e in self.entries if e[0] != key]


@dataclass(frozen=True)
class Step:
    what: str
    key: int
    payload_bytes: int
    rows: int | None


STEPS = st.lists(
    st.builds(
        Step, st.sampled_from(["put", "put", "find", "forget"]), st.integers(0, 6), st.integers(0, 40),
        st.none() | st.integers(0, 4),
    ),
    max_size=60,
)  # fmt: skip


@settings(deadline=None)
@given(STEPS, st.integers(0, 100), st.integers(0, 200), st.integers(0, 8))
def test_it_does_what_a_plain_list_would_do(steps: list[Step], codes: int, decoded: int, limit: int) -> None:
    cache, in_codes, in_decoded = MemoryCache(codes, decoded), PlainModel(codes), PlainModel(decoded)
    decoded_hits = codes_hits = misses = 0
    for step in steps:
        if step.what == "put":
            known = memory_of(step.payload_bytes, step.rows)
            cache.put(step.key, known)
            in_codes.put(step.key, step.payload_bytes)
            if step.rows is not None:
                in_decoded.put(step.key, step.payload_bytes + 2 * ROW_BYTES * step.rows)
        elif step.what == "forget":
            cache.forget(step.key)
            in_codes.drop(step.key)
            in_decoded.drop(step.key)
        else:
            found = cache.find(step.key)
            was_codes, was_decoded = in_codes.use(step.key), in_decoded.use(step.key)
            assert (found is not None) == (was_codes or was_decoded)
            assert (found is not None and found.memory is not None) == was_decoded
            decoded_hits += was_decoded
            codes_hits += was_codes and not was_decoded
            misses += found is None
        counts = cache.statistics()
        assert counts.codes_bytes == sum(s for _, s in in_codes.entries) <= codes
        assert counts.decoded_bytes == sum(s for _, s in in_decoded.entries) <= decoded
        assert counts.evictions == in_codes.evictions + in_decoded.evictions
        assert (counts.decoded_hits, counts.codes_hits, counts.misses) == (decoded_hits, codes_hits, misses)
        both = [key for key, _ in reversed(in_decoded.entries)]
        both += [key for key, _ in reversed(in_codes.entries) if key not in both]
        assert counts.memories == len(both)
        assert list(cache.held(limit)) == both[:limit]


def test_what_is_held_outlives_its_eviction() -> None:
    cache = MemoryCache(100, 100)
    cache.put(1, memory_of(60, 1))
    held = cache.held(10)
    cache.put(2, memory_of(60, 1))
    assert cache.find(1) is None
    assert len(held[1].payload) == 60
    assert held[1].memory is not None


def test_a_decoded_memory_that_must_go_leaves_its_codes() -> None:
    cache = MemoryCache(codes_bytes=100, decoded_bytes=50)
    cache.put(1, memory_of(10, 2))
    cache.put(2, memory_of(10, 2))
    first = cache.find(1)
    assert first is not None
    assert first.memory is None
    assert len(first.payload) == 10


def test_one_bound_for_both_tiers_is_kept() -> None:
    cache = MemoryCache.of(1000)
    for key in range(50):
        cache.put(key, memory_of(20, 4))
    counts = cache.statistics()
    assert 0 < counts.codes_bytes + counts.decoded_bytes <= 1000
    assert counts.memories > 0


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(InvalidInput, match="0 is the least"):
        MemoryCache(-1, 0)


def test_threads_keep_the_counts_right() -> None:
    cache, rounds = MemoryCache(500, 500), 200
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for key in rng.integers(0, 20, rounds).tolist():
            if cache.find(key) is None:
                cache.put(key, memory_of(30, 2))
            cache.held(5)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = cache.statistics()
    assert counts.decoded_hits + counts.codes_hits + counts.misses == 4 * rounds
    assert counts.codes_bytes == 30 * len(cache._codes.entries) <= 500
    assert counts.decoded_bytes == (30 + 4 * ROW_BYTES) * len(cache._decoded.entries) <= 500
