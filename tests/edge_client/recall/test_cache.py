"""The cache of memories holds what was used last, within its bytes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.recall.cache import CachedMemory, MemoryCache

LIMIT = 100
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "find", "forget"]), st.integers(0, 9), st.integers(0, 60)), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_cache_holds_what_a_plain_list_in_the_order_of_use_would(steps: list[tuple[str, int, int]]) -> None:
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
