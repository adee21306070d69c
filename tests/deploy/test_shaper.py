from __future__ import annotations

import pytest

from deploy.bench.shaper import Line, Link


def test_segments_arrive_half_a_round_trip_later_and_behind_those_before():
    assert Line(Link(rtt_ms=50)).arrival(10.0, 1000) == pytest.approx(10.025)
    line = Line(Link(bandwidth_mbit=8))  # a megabyte a second
    assert line.arrival(0.0, 1_000_000) == pytest.approx(1.0)
    assert line.arrival(0.0, 500_000) == pytest.approx(1.5)
    assert line.arrival(9.0, 500_000) == pytest.approx(9.5), "an idle line does not save up bandwidth"
