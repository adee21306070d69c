"""Stages of retrievals are counted as the library's own histogram would count them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from memory_service.ops.metrics import STAGE_BUCKETS, StageTimes

MICROSECONDS = st.lists(st.integers(0, 6_000_000) | st.sampled_from([100, 250, 5_000_000]), max_size=20)


@given(times=MICROSECONDS)
def test_stages_are_counted_as_the_library_counts(times: list[int]) -> None:
    stages, registry = StageTimes(), CollectorRegistry()
    expected = Histogram("a", "a", buckets=STAGE_BUCKETS, registry=registry)
    for us in times:
        stages.observe(us, 0, 0, 0, 0)
        expected.observe(us / 1e6)
    (family,) = stages.collect()
    for sample in family.samples:
        if sample.labels["stage"] != "search":
            continue
        bound = {"le": sample.labels["le"]} if "le" in sample.labels else {}
        theirs = registry.get_sample_value("a" + sample.name.removeprefix(family.name), bound)
        assert theirs is not None
        assert abs(sample.value - theirs) < 1e-9
