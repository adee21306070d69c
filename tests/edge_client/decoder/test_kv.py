"""Memories that do not fit and a context that is too long are refused."""

from __future__ import annotations

import numpy as np
import pytest

from edge_client.decoder.kv import Caches, check_memories
from edge_client.errors import ProviderError
from memory_model.codec.payload import ExplicitMemory
from memory_model.errors import InvalidInput
from tests.edge_client.tiny_bundle import random_memory, tiny_config

CONFIG = tiny_config()


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
