"""The worker recalls beside its callers, in order, and whatever happens every ticket is resolved."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest

from edge_client.cancellation import Cancellation
from edge_client.generate.prompt import asks, generated_query
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import Recall
from edge_client.recall.worker import RecallWorker
from memory_model.errors import InvalidInput

LONG_S = 20.0


class Recalling:
    """Recalls when the test lets it: `begun` says that a recall has begun, `go` lets it end."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.times_s: list[tuple[float | None, float]] = []
        self.threads: set[threading.Thread] = set()
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.error: Exception | None = None

    def recall(
        self, queries: Sequence[str], *, deadline_s: float | None = None, queued_s: float = 0.0,
        cancellation: Cancellation | None = None,
    ) -> list[Recall]:  # fmt: skip
        assert cancellation is not None
        self.asked.append(tuple(queries))
        self.times_s.append((deadline_s, queued_s))
        self.threads.add(threading.current_thread())
        cancellation.when_cancelled(self.go.release)
        self.begun.release()
        assert self.go.acquire(timeout=LONG_S)
        if cancellation.cancelled:
            return [Recall(q, error="CANCELLED: ended", state="skipped") for q in queries]
        if self.error:
            raise self.error
        return [Recall(q) for q in queries]

    def wait_begun(self) -> None:
        assert self.begun.acquire(timeout=LONG_S)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def recalling() -> Recalling:
    return Recalling()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def worker(recalling: Recalling, clock: Clock) -> Iterator[RecallWorker]:
    opened = RecallWorker(recalling, waiting=2, threads=1, clock=clock)
    yield opened
    opened.close()


def queries_of(recalls: Sequence[Recall]) -> list[str]:
    return [r.query for r in recalls]


def test_submitting_does_not_wait_and_the_result_comes(worker: RecallWorker, recalling: Recalling) -> None:
    ticket = worker.submit(["a", "b"])
    recalling.wait_begun()
    assert not ticket.done()
    recalling.go.release()
    found = ticket.result()
    assert ticket.done()
    assert queries_of(found) == ["a", "b"]
    assert {r.state for r in found} == {"fetched"}
    assert ticket.result(0) == found, "it may be taken again"


def test_one_thread_serves_in_order(worker: RecallWorker, recalling: Recalling) -> None:
    tickets = [worker.submit([name]) for name in "ab"]
    recalling.wait_begun()
    tickets.append(worker.submit(["c"]))
    for _ in tickets:
        recalling.go.release()
    assert [queries_of(t.result()) for t in tickets] == [["a"], ["b"], ["c"]]
    assert recalling.asked == [("a",), ("b",), ("c",)]
    (thread,) = recalling.threads
    assert thread is not threading.current_thread()


def test_a_recall_that_hangs_does_not_keep_another_session_waiting(recalling: Recalling) -> None:
    worker = RecallWorker(recalling, threads=3)
    hanging = worker.submit(["hangs"])
    recalling.wait_begun()
    others = [worker.submit([name]) for name in "abc"]
    for _ in "ab":
        recalling.wait_begun()
    assert {*recalling.asked} == {("hangs",), ("a",), ("b",)}, "three at a time, and no more"
    hanging.cancel()
    recalling.wait_begun()
    for _ in others:
        recalling.go.release()
    assert [queries_of(t.result()) for t in others] == [["a"], ["b"], ["c"]]
    assert len(recalling.threads) == 3
    worker.close()
    assert not any(thread.is_alive() for thread in recalling.threads)


def test_a_ticket_that_was_missed_is_late_and_says_so(worker: RecallWorker, recalling: Recalling) -> None:
    ticket = worker.submit(["a"])
    (missed,) = ticket.result(0)
    assert (missed.state, missed.error.split(":")[0], missed.memories) == ("late", "DEADLINE_EXCEEDED", ())
    recalling.go.release()
    (found,) = ticket.result()
    assert (found.state, found.error) == ("late", "")


def test_a_failure_that_comes_late_stays_a_failure(worker: RecallWorker, recalling: Recalling) -> None:
    recalling.error = RuntimeError("broke")
    ticket = worker.submit(["a"])
    ticket.result(0)
    recalling.go.release()
    (found,) = ticket.result()
    assert (found.state, found.error) == ("failed", "RuntimeError: broke")


def test_an_error_costs_one_recall(worker: RecallWorker, recalling: Recalling) -> None:
    recalling.error = ValueError("broke")
    recalling.go.release()
    assert worker.submit(["a"]).result()[0].error == "ValueError: broke"
    recalling.error = None
    recalling.go.release()
    assert worker.submit(["b"]).result()[0].state == "fetched"


def test_a_full_line_skips_what_comes(worker: RecallWorker, recalling: Recalling) -> None:
    first = worker.submit(["served"])
    recalling.wait_begun()
    waiting = [worker.submit([name]) for name in "ab"]
    skipped = worker.submit(["c"])
    assert skipped.done()
    (found,) = skipped.result()
    assert (found.state, found.error) == ("skipped", "BUSY: 2 recalls wait already")
    waiting[0].cancel()
    assert not worker.submit(["d"]).done(), "a cancelled one takes no place"
    for _ in range(3):
        recalling.go.release()
    assert first.result()[0].state == "fetched"


def test_what_waited_beyond_its_deadline_is_not_asked(
    worker: RecallWorker, recalling: Recalling, clock: Clock
) -> None:
    worker.submit(["served"], deadline_s=10)
    recalling.wait_begun()
    short, long = worker.submit(["short"], deadline_s=1), worker.submit(["long"], deadline_s=5)
    clock.now = 2.0
    recalling.go.release()
    recalling.go.release()
    assert short.result()[0].error.startswith("DEADLINE_EXCEEDED: it waited 1 s for other recalls")
    assert long.result()[0].state == "fetched"
    assert recalling.times_s == [(10.0, 0.0), (5.0, 2.0)], "the recaller learns how long it waited"


def test_cancelling_what_waits_resolves_it_at_once(worker: RecallWorker, recalling: Recalling) -> None:
    worker.submit(["served"])
    recalling.wait_begun()
    ticket = worker.submit(["a"])
    ticket.cancel()
    assert ticket.done()
    assert ticket.result()[0].error.startswith("CANCELLED")
    recalling.go.release()
    recalling.go.release()
    assert worker.submit(["b"]).result()[0].state == "fetched"
    assert recalling.asked == [("served",), ("b",)]


def test_cancelling_what_is_served_ends_its_call(worker: RecallWorker, recalling: Recalling) -> None:
    ticket = worker.submit(["a"])
    recalling.wait_begun()
    ticket.cancel()
    assert ticket.result()[0].state == "skipped"
    recalling.go.release()
    assert worker.submit(["b"]).result()[0].state == "fetched"


def test_closing_resolves_everything_and_ends_the_thread(worker: RecallWorker, recalling: Recalling) -> None:
    tickets = [worker.submit(["served"])]
    recalling.wait_begun()
    tickets += [worker.submit([name]) for name in "ab"]
    worker.close()
    worker.close()
    assert [t.result()[0].error for t in tickets] == ["CANCELLED: the model was closed"] * 3
    assert worker.closed
    assert not any(thread.is_alive() for thread in recalling.threads)
    after = worker.submit(["late"])
    assert (after.done(), after.result()[0].state) == (True, "skipped")


def test_somebody_who_waits_is_freed_by_closing(worker: RecallWorker, recalling: Recalling) -> None:
    ticket = worker.submit(["a"])
    found: list[Recall] = []
    waiter = threading.Thread(target=lambda: found.extend(ticket.result()))
    waiter.start()
    recalling.wait_begun()
    worker.close()
    waiter.join(LONG_S)
    assert found[0].state == "skipped"


def test_a_worker_that_nobody_holds_ends_its_thread(recalling: Recalling) -> None:
    worker = RecallWorker(recalling)
    recalling.go.release()
    worker.submit(["a"]).result()
    gone = weakref.ref(worker)
    del worker
    gc.collect()
    assert gone() is None
    for thread in recalling.threads:
        thread.join(LONG_S)
        assert not thread.is_alive()


def test_no_query_is_nothing_to_do(worker: RecallWorker, recalling: Recalling) -> None:
    ticket = worker.submit([])
    assert (ticket.done(), ticket.result(), recalling.asked) == (True, [], [])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RecallPolicy(lead_tokens=-1),
        lambda: RecallPolicy(prompt_deadline_s=0),
        lambda: RecallPolicy(chunk_deadline_s=float("nan")),
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        wrong()


def test_modes_are_their_names() -> None:
    assert [RecallMode(name).value for name in ("overlap", "exact", "off")] == ["overlap", "exact", "off"]


def test_a_chunk_asks_once_a_lead_before_its_end() -> None:
    assert [n for n in range(200) if asks(n, 64)] == [64, 128, 192]
    assert [n for n in range(200) if asks(n, 64, 16)] == [48, 112, 176]
    assert [n for n in range(200) if asks(n, 64, 500)] == [1, 65, 129, 193], "one own token at least"


def test_a_query_with_a_lead_looks_further_back() -> None:
    said = list(range(10))
    assert list(generated_query(said, 4)) == [6, 7, 8, 9]
    assert list(generated_query(said[:8], 4)) == [4, 5, 6, 7]
    assert list(generated_query(said, 64)) == said
