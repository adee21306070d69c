"""A second call is made when the first is late or broke, within a budget; the first answer wins, the other is ended."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from edge_client.cancellation import Cancellation
from edge_client.errors import (
    DeadlineExceeded,
    RecallCancelled,
    RequestRefused,
    RetrievalError,
    ServiceOverloaded,
    ServiceUnavailable,
)
from edge_client.wire.hedge import BUDGET, ENOUGH, SHORTEST_S, Hedge
from edge_client.wire.retrieval import Answer
from memory_model.errors import InvalidInput

FOUND, OTHER = Answer((), 1.0), Answer((), 2.0)
AT_ONCE, NEVER, LONG_S = 1e-6, math.inf, 30.0


class Call:
    """A call that ends when the test says so."""

    def __init__(self) -> None:
        self.cancelled = False
        self._outcome: Answer | RetrievalError | None = None
        self._callbacks: list[Callable[[], None]] = []

    def when_done(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        if self._outcome is not None:
            callback()

    def end(self, outcome: Answer | RetrievalError) -> Call:
        self._outcome = outcome
        for callback in self._callbacks:
            callback()
        return self

    def cancel(self) -> None:
        self.cancelled = True

    def result(self) -> Answer:
        assert self._outcome is not None, "only a call that has ended is asked for its result"
        if isinstance(self._outcome, RetrievalError):
            raise self._outcome
        return self._outcome


class Service:
    """Hands out calls; on_begin[n] is done when call n has begun."""

    def __init__(self, *on_begin: Callable[[list[Call]], object]) -> None:
        self.calls: list[Call] = []
        self.timeouts_s: list[float] = []
        self._on_begin = on_begin

    def begin(self, connection: int, timeout_s: float) -> Call:
        assert connection == len(self.calls)
        self.timeouts_s.append(timeout_s)
        self.calls.append(Call())
        self._on_begin[connection](self.calls)
        return self.calls[-1]


def test_an_answer_in_time_is_one_call() -> None:
    service = Service(lambda calls: calls[0].end(FOUND))
    hedge = Hedge(LONG_S)
    assert hedge.ask(service.begin, LONG_S) == (FOUND, 1)
    assert (hedge.statistics().calls, hedge.statistics().hedged) == (1, 0)


def test_a_late_call_is_sent_again_and_the_second_answer_wins() -> None:
    service = Service(lambda calls: None, lambda calls: calls[1].end(OTHER))
    hedge = Hedge(AT_ONCE)
    assert hedge.ask(service.begin, LONG_S) == (OTHER, 2)
    assert service.calls[0].cancelled
    assert service.timeouts_s[1] < service.timeouts_s[0] <= LONG_S
    assert (hedge.statistics().hedged, hedge.statistics().won) == (1, 1)


def test_the_first_call_may_still_win() -> None:
    service = Service(lambda calls: None, lambda calls: calls[0].end(FOUND))
    hedge = Hedge(AT_ONCE)
    assert hedge.ask(service.begin, LONG_S) == (FOUND, 2)
    assert service.calls[1].cancelled
    assert (hedge.statistics().hedged, hedge.statistics().won) == (1, 0)


def test_one_of_two_that_fails_leaves_the_other() -> None:
    def end(calls: list[Call]) -> None:
        calls[0].end(ServiceUnavailable("broke"))
        calls[1].end(OTHER)

    assert Hedge(AT_ONCE).ask(Service(lambda calls: None, end).begin, LONG_S) == (OTHER, 2)


def test_a_broken_connection_is_replaced_at_once() -> None:
    service = Service(lambda calls: calls[0].end(ServiceUnavailable("reset")), lambda c: c[1].end(OTHER))
    assert Hedge(LONG_S).ask(service.begin, LONG_S) == (OTHER, 2)


def test_two_failures_are_one_error() -> None:
    broke = ServiceUnavailable("reset")
    service = Service(lambda calls: calls[0].end(broke), lambda calls: calls[1].end(broke))
    with pytest.raises(ServiceUnavailable, match="reset"):
        Hedge(LONG_S).ask(service.begin, LONG_S)


@pytest.mark.parametrize("error", [ServiceOverloaded, RequestRefused, DeadlineExceeded])
def test_what_asking_again_would_not_mend_is_not_asked_again(error: type[RetrievalError]) -> None:
    service = Service(lambda calls: calls[0].end(error("no")))
    with pytest.raises(error):
        Hedge(LONG_S).ask(service.begin, LONG_S)
    assert len(service.calls) == 1


def test_never_is_never() -> None:
    service = Service(lambda calls: calls[0].end(ServiceUnavailable("reset")))
    with pytest.raises(ServiceUnavailable):
        Hedge(NEVER).ask(service.begin, LONG_S)
    assert len(service.calls) == 1


def test_a_call_that_never_ends_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_client.wire.hedge._GRACE_S", 0.0)
    service = Service(lambda calls: None)
    with pytest.raises(DeadlineExceeded):
        Hedge(NEVER).ask(service.begin, 0.01)
    assert service.calls[0].cancelled


def test_cancelling_ends_both_calls() -> None:
    cancellation = Cancellation()
    service = Service(lambda calls: None, lambda calls: cancellation.cancel())
    with pytest.raises(RecallCancelled):
        Hedge(AT_ONCE).ask(service.begin, LONG_S, cancellation)
    assert [call.cancelled for call in service.calls] == [True, True]
    with pytest.raises(RecallCancelled):
        Hedge(NEVER).ask(Service(lambda calls: None).begin, LONG_S, cancellation)


def test_second_calls_have_a_budget_that_answers_refill() -> None:
    hedge = Hedge(AT_ONCE)
    late = lambda calls: None  # noqa: E731
    for _ in range(int(BUDGET)):
        with pytest.raises(ServiceUnavailable):
            hedge.ask(
                Service(late, lambda calls: [c.end(ServiceUnavailable("no")) for c in calls]).begin, LONG_S
            )
    single = Service(lambda calls: calls[0].end(ServiceUnavailable("reset")))
    with pytest.raises(ServiceUnavailable):
        hedge.ask(single.begin, LONG_S)
    assert (len(single.calls), hedge.statistics().refused) == (1, 1)
    for _ in range(11):  # each adds a tenth
        hedge.ask(Service(lambda calls: calls[0].end(FOUND)).begin, LONG_S)
    double = Service(lambda calls: calls[0].end(ServiceUnavailable("reset")), lambda c: c[1].end(OTHER))
    assert hedge.ask(double.begin, LONG_S) == (OTHER, 2)


def test_what_is_late_follows_what_is_usual() -> None:
    hedge = Hedge()
    assert hedge.after_s(2.0) == 0.5, "nothing is known yet: a quarter of the deadline"
    for _ in range(ENOUGH):
        hedge.ask(Service(lambda calls: calls[0].end(FOUND)).begin, LONG_S)
    assert SHORTEST_S <= hedge.after_s(LONG_S) < LONG_S / 4, "answers came at once"
    hedge._recent_s.extend([0.1] * 60 + [0.4] * 4)
    assert hedge.after_s(2.0) == pytest.approx(0.8), "twice the 95th percentile"
    assert hedge.after_s(1.0) == 0.5, "never later than half the deadline"


def test_a_nonsensical_wait_is_refused() -> None:
    with pytest.raises(InvalidInput):
        Hedge(0.0)
