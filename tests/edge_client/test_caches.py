"""Text rows and memories survive every change of geometry; rows that appear are zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.decoder.kv import BUCKET, CacheRows
from memory_model.cache_layout import TEXT
from memory_model.codec.payload import ExplicitMemory
from memory_model.errors import InvalidInput
from tests.edge_client.tiny_bundle import random_memory, tiny_config

CONFIG = tiny_config()
CAPACITY = 5 * BUCKET


def text_row(name: str, head: int, row: int) -> np.ndarray:
    return np.full(CONFIG.head_dim, hash((name, head, row)) % 1000 + 1, np.float32)


def write_text(caches: CacheRows, first: int, count: int) -> None:
    for name in caches.names():
        start = caches.slot_rows(caches._of[name].layout)
        view = caches.view(name)
        for head in range(len(view)):
            for row in range(first, first + count):
                view[head, start + row] = text_row(name, head, row)


def check(caches: CacheRows, length: int, memories: list[ExplicitMemory]) -> None:
    for name in caches.names():
        tensor, view = caches._of[name], caches.view(name)
        slots = caches.slot_rows(tensor.layout)
        assert np.isfinite(view).all()
        for head in range(len(view)):
            for row in range(length):
                np.testing.assert_array_equal(view[head, slots + row], text_row(name, head, row))
        if tensor.layout == TEXT or not memories:
            assert slots == 0
            continue
        side = "keys" if name == tensor.keys else "values"
        mask = caches.slot_masks[tensor.layout]
        for head, (kept, first) in enumerate(zip(tensor.tokens, tensor.first_rows, strict=True)):
            seen = view[head, :slots][mask[head if len(mask) > 1 else 0] == 0]
            want = [getattr(m, side)[first : first + min(kept, m.tokens)] for m in memories]
            np.testing.assert_array_equal(seen, np.concatenate(want))


@given(st.lists(st.one_of(
    st.tuples(st.just("write"), st.integers(1, 90)),
    st.tuples(st.just("rewind"), st.integers(0, 100)),
    st.tuples(st.just("inject"), st.integers(0, 5)),
), max_size=8))  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_changes_keeps_text_and_memories(steps: list[tuple[str, int]]) -> None:
    caches = CacheRows(CONFIG, CAPACITY)
    length, memories = 0, []
    for number, (what, amount) in enumerate(steps):
        if what == "write":
            amount = min(amount, CAPACITY - length)
            caches.fit(length + amount)
            write_text(caches, length, amount)
            length += amount
        elif what == "rewind":
            length = length * amount // 100
            caches.fit(length, shrink=True)
        else:
            memories = [random_memory(CONFIG, 10 * number + n) for n in range(amount)]
            caches.inject(memories)
        check(caches, length, memories)


def test_memories_cost_nothing_while_there_are_none() -> None:
    caches = CacheRows(CONFIG, CAPACITY)
    assert {caches.view(name).shape[1] for name in caches.names()} == {BUCKET}
    caches.inject([random_memory(CONFIG, 0)])
    assert max(caches.view(name).shape[1] for name in caches.names()) == BUCKET + 5 * 32
    caches.inject([])
    assert {caches.view(name).shape[1] for name in caches.names()} == {BUCKET}


def test_what_does_not_fit_the_slots_is_refused_and_changes_nothing() -> None:
    caches = CacheRows(CONFIG, CAPACITY)
    good = [random_memory(CONFIG, n) for n in range(6)]
    caches.inject(good[:2])
    small = ExplicitMemory(good[0].keys[:-1], good[0].values, 3)
    broken = ExplicitMemory(good[0].keys * np.nan, good[0].values, 3)
    infinite = ExplicitMemory(good[0].keys, good[0].values + np.inf, 3)
    for bad, why in (
        (good, "6 memories"),
        ([small], "expected"),
        ([good[0], broken], "NaN"),
        ([infinite], "infinity"),
        ([ExplicitMemory(good[0].keys, good[0].values, 0)], "0 tokens"),
        ([ExplicitMemory(good[0].keys, good[0].values, 33)], "33 tokens"),
    ):
        with pytest.raises(InvalidInput, match=why):
            caches.inject(bad)
        check(caches, 0, good[:2])
