from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench.break_even import break_even_ms


def test_inside_what_was_measured_it_is_interpolated():
    at, inside = break_even_ms([0, 50, 100], [1.0, 1.4, 2.0], [1.5, 1.6, 1.6])
    assert inside
    assert at == pytest.approx(50 + 50 * 0.2 / 0.6)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.5, 2), st.floats(0.1, 2), st.floats(2, 5))
def test_outside_it_is_where_the_two_straight_lines_meet(ours_s, lead_s, trips):
    rtt = [0, 20, 50]
    ours = [ours_s + trips * ms / 1000 for ms in rtt]
    theirs = [ours_s + lead_s + ms / 1000 for ms in rtt]
    at, inside = break_even_ms(rtt, ours, theirs)
    assert at == pytest.approx(1000 * lead_s / (trips - 1), rel=1e-6)
    assert inside == (at <= 50)


def test_the_order_of_the_measurements_does_not_matter():
    assert break_even_ms([100, 0], [3, 1], [2, 2]) == break_even_ms([0, 100], [1, 3], [2, 2])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [([2, 2], [1, 1]), ([1, 1], [2, 2]), ([1, 1], [2, 3])],
    ids=["never faster", "always as much faster", "faster and faster"],
)
def test_where_the_two_never_meet_there_is_no_point(ours, theirs):
    assert break_even_ms([0, 100], ours, theirs) == (None, False)


def test_one_measurement_tells_no_point():
    assert break_even_ms([0], [1], [2]) == (None, False)
