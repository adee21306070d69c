from __future__ import annotations

import pytest

from deploy.bench.shaper import RETRANSMISSION_MS, Line, Link


def test_segments_arrive_half_a_round_trip_later_and_behind_those_before():
    assert Line(Link(rtt_ms=50), seed=0).arrival(10.0, 1000) == pytest.approx(10.025)
    line = Line(Link(bandwidth_mbit=8), seed=0)  # a megabyte a second
    assert line.arrival(0.0, 1_000_000) == pytest.approx(1.0)
    assert line.arrival(0.0, 500_000) == pytest.approx(1.5)
    assert line.arrival(9.0, 500_000) == pytest.approx(9.5), "an idle line does not save up bandwidth"


def test_a_lost_segment_is_sent_again_and_holds_up_those_behind_it():
    line = Line(Link(rtt_ms=20, loss=0.999999), seed=0)
    late = line.arrival(0.0, 1000)
    assert late == pytest.approx((10 + RETRANSMISSION_MS + 20) / 1000)
    assert line.arrival(0.0, 0) >= late
