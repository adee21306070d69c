from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench.latency import Latencies
from deploy.bench.load import closed_loop, open_loop


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=300), st.sampled_from([50.0, 90.0, 99.0]))
def test_percentiles_are_numpys_to_three_digits(seconds, percent):
    latencies = Latencies()
    for value in seconds:
        latencies.add(value)
    exact = np.percentile(seconds, percent, method="inverted_cdf")
    assert latencies.percentile_ms(percent) == pytest.approx(1e3 * exact, rel=2e-3, abs=1.1e-3)


def test_a_summary_can_be_added_to_another_histogram():
    one, other = Latencies(), Latencies()
    one.add(0.001)
    other.add(0.003)
    other.merge(one.summary()["hdr"])
    assert other.count == 2
    assert other.percentile_ms(50) == pytest.approx(1, rel=2e-3)
    assert other.summary()["max_ms"] == pytest.approx(3, rel=2e-3)
    assert Latencies().summary() == {"count": 0}


def test_the_curve_of_percentiles_rises_and_says_no_more_than_the_samples():
    latencies = Latencies()
    for n in range(1, 101):
        latencies.add(n / 1000)
    percents, times = zip(*latencies.curve(), strict=True)
    assert list(times) == sorted(times)
    assert max(percents) <= 99


class Stalling:
    """A server with one place that answers at once, but stands still once for a while."""

    def __init__(self, stall_s: float) -> None:
        self.place, self.stall_s, self.calls = asyncio.Lock(), stall_s, 0

    async def __call__(self, number: int) -> dict[str, float]:
        async with self.place:
            self.calls += 1
            if self.calls == 5:
                await asyncio.sleep(self.stall_s)
        return {"search": 0.001}


async def test_an_open_loop_charges_a_stall_to_all_calls_that_fell_due_in_it():
    load = await open_loop(Stalling(0.3), per_s=100, seconds=0.5)
    assert load.latencies.count == 50
    assert load.latencies.percentile_ms(75) >= 20, "some 30 of the 50 calls were due while it stood still"
    assert load.stages["search"].count == 50


async def test_waiting_for_a_place_among_the_calls_in_flight_is_counted_too():
    load = await open_loop(Stalling(0.3), per_s=100, seconds=0.5, in_flight=1)
    assert load.latencies.count == 50
    assert load.latencies.percentile_ms(75) >= 20
    assert load.lateness.percentile_ms(75) >= 20, "and it is told that the calls were sent late"


async def test_clients_of_a_closed_loop_wait_for_their_answers_and_number_their_calls_apart():
    under_way, most, numbers = 0, 0, []

    async def call(number: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        numbers.append(number)
        await asyncio.sleep(0.001)
        under_way -= 1

    load = await closed_loop(call, clients=3, seconds=0.05)
    assert most == 3
    assert load.seconds >= 0.05
    assert load.latencies.count == len(numbers) == len(set(numbers))
    assert load.answered_per_s == pytest.approx(len(numbers) / load.seconds)


async def test_failures_are_counted_by_name_and_never_measured_as_latency():
    async def call(number: int) -> None:
        if number % 2:
            raise ConnectionResetError("gone")

    load = await open_loop(call, per_s=1000, seconds=0.02)
    assert load.errors == {"ConnectionResetError": 10}
    assert load.latencies.count == 10
    assert load.summary()["errors"] == {"ConnectionResetError": 10}


async def test_calls_are_never_sent_before_they_are_due():
    sent: list[float] = []

    async def call(number: int) -> None:
        sent.append(time.perf_counter())

    began = time.perf_counter()
    await open_loop(call, per_s=200, seconds=0.05)
    assert all(at - began >= number / 200 for number, at in enumerate(sent))


async def test_a_load_of_nothing_is_refused():
    async def call(number: int) -> None: ...

    with pytest.raises(ValueError, match="positive"):
        await open_loop(call, per_s=0, seconds=1)
    with pytest.raises(ValueError, match="clients"):
        await closed_loop(call, clients=0, seconds=1)
