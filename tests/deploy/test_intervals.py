from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench.intervals import interleave, median_interval, percentile, ratio_interval


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.1, 1e6), min_size=5, max_size=30))
def test_the_value_is_numpys_median_inside_its_bounds_inside_the_samples(samples):
    found = median_interval(samples)
    assert found.value == pytest.approx(np.median(samples))
    assert min(samples) <= found.low <= found.value <= found.high <= max(samples)


def test_fewer_than_five_rounds_give_no_interval_and_none_give_no_median():
    found = median_interval([1.0, 2.0, 3.0, 4.0])
    assert (found.value, found.low, found.high) == (2.5, None, None)
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])


def test_a_ratio_is_taken_round_by_round_so_that_drift_cancels():
    drift = np.array([1.0, 5.0, 0.2, 3.0, 2.0])
    found = ratio_interval(2.0 * drift, drift)
    assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))
    with pytest.raises(ValueError, match="zip"):
        ratio_interval([1, 2], [1])


def test_a_percentile_needs_ten_samples_beyond_it():
    samples = np.random.default_rng(0).permutation(1000) + 1.0
    assert percentile(samples, 99) == 990
    assert percentile(samples[:999], 99) is None
    assert percentile(samples[:20], 50) is not None


def test_every_round_has_every_variant_and_the_first_changes_from_round_to_round():
    order: list[tuple[int, str]] = []

    def variant(name: str):
        return lambda number: order.append((number, name)) or number

    samples = interleave({name: variant(name) for name in "abc"}, 3, warm_up=1)
    assert samples == {name: [0, 1, 2] for name in "abc"}, "warm-up is discarded"
    assert [name for number, name in order if number >= 0] == list("abcbcacab")
    assert [number for number, _ in order[:3]] == [-1, -1, -1]
