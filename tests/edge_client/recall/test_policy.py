"""After failures no call is made for a while, which grows: the breaker of the service."""

from edge_client.errors import RetrievalError
from edge_client.recall.policy import LONGEST_PAUSE_S, Breaker

AWAY = RetrievalError("away", reason="UNREACHABLE", unavailable=True)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pause_s(breaker: Breaker, clock: Clock) -> float:
    """Seconds until a call may be made."""
    begun = clock.now
    while breaker.open_error():
        clock.now += 0.5
    return clock.now - begun


def test_failures_in_a_row_double_the_pause_and_an_answer_closes_it() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for expected in (1, 2, 4, 8, 16, 30, 30):
        breaker.failed(breaker.begin(), AWAY)
        assert pause_s(breaker, clock) == expected
    breaker.answered()
    assert breaker.open_error() is None
    breaker.failed(breaker.begin(), AWAY)
    assert pause_s(breaker, clock) == 1


def test_failures_of_calls_that_were_under_way_together_count_once() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    together = [breaker.begin() for _ in range(3)]
    for expected in (1, 2):  # the next failure of a call that began later counts again
        for call in together:
            breaker.failed(call, AWAY)
        assert pause_s(breaker, clock) == expected
        together = [breaker.begin()]


def test_the_service_names_a_longer_pause_up_to_the_longest() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for wish_s, expected in ((3.0, 3.0), (600.0, LONGEST_PAUSE_S)):
        busy = RetrievalError("busy", reason="OVERLOADED", unavailable=True, retry_after_s=wish_s)
        breaker.failed(breaker.begin(), busy)
        error = breaker.open_error()
        assert error is not None
        assert (error.reason, str(error)) == ("OVERLOADED", f"busy (no new call for {expected:.1f} s)")
        assert pause_s(breaker, clock) == expected
