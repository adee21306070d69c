"""Text rows and memories of every sequence stay what they are, whatever is written to the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.decoder.kv import Caches, Rows, check_memories
from edge_client.errors import ProviderError
from memory_model.cache_layout import TEXT
from memory_model.codec.payload import ExplicitMemory
from memory_model.errors import InvalidInput
from tests.edge_client.tiny_bundle import random_memory, tiny_config

CONFIG = tiny_config()
CONTEXT, PLACES = 100, 3


def text(caches: Caches, length: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal((len(t.heads), length, CONFIG.head_dim)).astype(caches.dtype)
        for name, t in caches.tensors.items()
    }


def seen_memories(caches: Caches, place: int, name: str) -> list[np.ndarray]:
    """By head: the slot rows that the mask leaves."""
    tensor = caches.tensors[name]
    mask = caches.masks[tensor.layout][place]
    rows = caches.buffers[name].array[place]
    return [rows[h, : mask.shape[1]][mask[h if len(mask) > 1 else 0] == 0] for h in range(len(rows))]


@given(st.lists(st.tuples(
    st.sampled_from(["begin", "write", "inject", "move"]), st.integers(0, PLACES - 1), st.integers(0, 100)
), max_size=12))  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_changes_keeps_text_and_memories(steps: list[tuple[str, int, int]]) -> None:
    caches = Caches(CONFIG, CONTEXT, PLACES)
    state: list[tuple[bool, Rows, list[ExplicitMemory]]] = [(False, text(caches, 0, 0), [])] * PLACES
    for number, (what, place, amount) in enumerate(steps):
        memory, rows, memories = state[place]
        if what == "begin":
            memory, rows, memories = amount % 2 == 0, text(caches, 0, 0), []
            caches.begin(place, memory)
        elif what == "write":
            rows = text(caches, min(amount, CONTEXT), number)
            caches.write(place, memory, rows)
        elif what == "inject" and memory:
            memories = [random_memory(CONFIG, 10 * number + n) for n in range(amount % 6)]
            caches.inject(place, memories)
        elif what == "move":
            other = (place + 1) % PLACES
            length = next(iter(rows.values())).shape[1]
            copied = caches.read(place, memory, length)
            caches.begin(other, memory)
            caches.write(other, memory, copied)
            caches.inject(other, memories) if memory else None
            state[other] = memory, rows, memories
        state[place] = memory, rows, memories
    for place, (memory, rows, memories) in enumerate(state):
        found = caches.read(place, memory, next(iter(rows.values())).shape[1])
        for name, tensor in caches.tensors.items():
            np.testing.assert_array_equal(found[name], rows[name])
            if tensor.layout == TEXT or not memory:
                continue
            side = "keys" if name == tensor.keys else "values"
            for head, seen in enumerate(seen_memories(caches, place, name)):
                first = tensor.first_rows[head]
                want = [getattr(m, side)[first : first + min(tensor.tokens[head], m.tokens)] for m in memories]
                np.testing.assert_array_equal(seen, np.concatenate(want) if want else seen[:0])


def test_what_does_not_fit_the_slots_is_refused() -> None:
    good = [random_memory(CONFIG, n) for n in range(6)]
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
            check_memories(bad, CONFIG)


def test_a_context_that_no_memory_holds_is_called_so() -> None:
    with pytest.raises(ProviderError, match="shorter context") as raised:
        Caches(CONFIG, 10**13)
    assert raised.value.reason == "OUT_OF_MEMORY"
