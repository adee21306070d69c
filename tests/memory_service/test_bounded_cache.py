"""A cache never takes more bytes than it was given, and gives back what was put in."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from memory_service.stores.bounded_cache import ENTRY_BYTES, BoundedCache

_STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 9), st.integers(0, 4000)), max_size=60
)


@given(_STEPS, st.integers(0, 9000))
def test_it_stays_within_its_budget_and_never_mixes_up_values(
    steps: list[tuple[bool, int, int, int]], budget: int
) -> None:
    cache: BoundedCache[bytes] = BoundedCache("test", budget, len)
    put: dict[tuple[int, int], bytes] = {}
    for putting, kb, memory_id, size in steps:
        if putting:
            value = put.setdefault((kb, memory_id), bytes([kb, memory_id]) * size)
            cache.put_many(kb, {memory_id: value})
        else:
            for found_id, found in cache.get_many(kb, [memory_id]).items():
                assert found == put[kb, found_id]
        assert cache.used_bytes <= budget


def test_what_was_asked_for_lately_stays() -> None:
    cache: BoundedCache[bytes] = BoundedCache("test", 3 * (ENTRY_BYTES + 10), len)
    cache.put_many(1, {n: bytes(10) for n in range(3)})
    assert cache.get_many(1, [0]) == {0: bytes(10)}
    cache.put_many(1, {3: bytes(10)})
    assert sorted(cache.get_many(1, range(4))) == [0, 2, 3]


def test_threads_do_not_exceed_the_budget() -> None:
    cache: BoundedCache[bytes] = BoundedCache("test", 20_000, len)

    def fill(kb: int) -> None:
        for n in range(300):
            cache.put_many(kb, {n: bytes(500)})
            cache.get_many(kb, range(n))

    threads = [threading.Thread(target=fill, args=(kb,)) for kb in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < cache.used_bytes <= 20_000
