"""The cache keeps what was used last within its bounds, whatever comes."""

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
    """What the cache is said to do, in the plainest way: lists of (id, bytes), the one used last at the end."""

    codes_limit: int
    decoded_limit: int
    codes: list[tuple[int, int]] = field(default_factory=list)
    decoded: list[tuple[int, int]] = field(default_factory=list)

    def put(self, key: int, codes: int, decoded: int | None) -> None:
        self.drop(key)
        if codes > self.codes_limit:
            return
        self.codes.append((key, codes))
        if decoded is not None and decoded <= self.decoded_limit:
            self.decoded.append((key, decoded))
        while sum(s for _, s in self.codes) > self.codes_limit:
            self.drop(self.codes[0][0])
        while sum(s for _, s in self.decoded) > self.decoded_limit:
            del self.decoded[0]

    def use(self, key: int) -> None:
        self.codes.sort(key=lambda e: e[0] == key)
        self.decoded.sort(key=lambda e: e[0] == key)

    def drop(self, key: int) -> None:
        self.codes = [e for e in self.codes if e[0] != key]
        self.decoded = [e for e in self.decoded if e[0] != key]


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
    cache, plain = MemoryCache(codes, decoded), PlainModel(codes, decoded)
    for step in steps:
        if step.what == "put":
            rows_bytes = None if step.rows is None else 2 * ROW_BYTES * step.rows
            cache.put(step.key, memory_of(step.payload_bytes, step.rows))
            plain.put(step.key, step.payload_bytes, rows_bytes)
        elif step.what == "forget":
            cache.forget(step.key)
            plain.drop(step.key)
        else:
            found = cache.find(step.key)
            assert (found is not None) == (step.key in dict(plain.codes))
            assert (found is not None and found.memory is not None) == (step.key in dict(plain.decoded))
            plain.use(step.key)
        assert cache.held_bytes == (sum(s for _, s in plain.codes), sum(s for _, s in plain.decoded))
        assert cache.held_bytes[0] <= codes
        assert cache.held_bytes[1] <= decoded
        assert list(cache.held(limit)) == [key for key, _ in reversed(plain.codes)][:limit]


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


def test_a_memory_beyond_a_bound_evicts_no_other() -> None:
    cache = MemoryCache(codes_bytes=100, decoded_bytes=50)
    cache.put(1, memory_of(10, 2))
    cache.put(2, memory_of(101, 1))
    cache.put(3, memory_of(10, 4))
    found = cache.find(1)
    assert found is not None
    assert found.memory is not None
    assert list(cache.held(5)) == [1, 3]


def test_one_bound_for_both_tiers_is_kept() -> None:
    cache = MemoryCache.of(1000)
    for key in range(50):
        cache.put(key, memory_of(20, 4))
    assert 0 < sum(cache.held_bytes) <= 1000
    assert cache.held(100)


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(InvalidInput, match="0 is the least"):
        MemoryCache(-1, 0)


def test_threads_keep_the_bounds() -> None:
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
    held = cache.held(100)
    decoded = sum(1 for each in held.values() if each.memory)
    assert cache.held_bytes == (30 * len(held), 4 * ROW_BYTES * decoded)
    assert cache.held_bytes <= (500, 500)
