"""The cache keeps the payloads that were used last within its bound, and shares what somebody reads decoded."""

from __future__ import annotations

import threading

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.recall.cache import CachedMemory, MemoryCache
from memory_model.codec.payload import ExplicitMemory

LIMIT = 100
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "find", "forget"]), st.integers(0, 9), st.integers(0, 60)), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_it_does_what_a_plain_list_does(steps: list[tuple[str, int, int]]) -> None:
    cache = MemoryCache(LIMIT)
    plain: dict[int, int] = {}  # id -> bytes, the one used last at the end
    for what, key, size in steps:
        known = plain.pop(key, None)
        if what == "put":
            cache.put(key, CachedMemory(bytes(size), size))
            plain[key] = size
            while sum(plain.values()) > LIMIT:
                del plain[next(iter(plain))]
        elif what == "forget":
            cache.forget(key)
        else:
            found = cache.find(key)
            assert (None if found is None else len(found.payload)) == known
            plain |= {} if known is None else {key: known}
        assert list(cache.held(10)) == list(reversed(plain))
        assert cache.held_bytes == sum(plain.values())


def test_a_payload_larger_than_the_bound_is_not_kept_and_evicts_nothing() -> None:
    cache = MemoryCache(LIMIT)
    cache.put(1, CachedMemory(bytes(60), 1))
    cache.put(2, CachedMemory(bytes(LIMIT + 1), 2))
    assert list(cache.held(10)) == [1]


def test_a_decoded_memory_is_shared_while_somebody_reads_it() -> None:
    cache = MemoryCache(LIMIT)
    memory = ExplicitMemory(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32), 1)
    cache.put(1, CachedMemory(b"codes", 5, memory))
    found = cache.find(1)
    assert found == CachedMemory(b"codes", 5, memory)
    del memory, found
    assert cache.find(1) == CachedMemory(b"codes", 5, None)


def test_threads_keep_it_within_its_bound() -> None:
    cache = MemoryCache(500)

    def use(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for key in rng.integers(0, 40, 200).tolist():
            cache.put(key, CachedMemory(bytes(30), key))
            cache.find(int(rng.integers(0, 40)))
            assert cache.held_bytes <= 500

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.held_bytes == 30 * len(cache.held(1000))
