"""The worker recalls beside its callers, every ticket is resolved, and no program waits for it at its end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from edge_client.cancellation import Cancellation
from edge_client.recall.policy import RecallPolicy
from edge_client.recall.recaller import LocalSource, Recall
from edge_client.recall.worker import RecallWorker
from memory_model.bundle import Bundle
from memory_model.errors import InvalidInput
from tests.edge_client.fake_service import FakeService

LONG_S = 20.0


class Recalling:
    """Recalls when the test lets it: `begun` says that a recall has begun, `go` lets it end."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.error: Exception | None = None

    def recall(
        self, queries: Sequence[str], *, deadline_s: float = LONG_S, cancellation: Cancellation | None = None,
        also: LocalSource | None = None,
    ) -> list[Recall]:  # fmt: skip
        assert cancellation is not None
        self.threads.add(threading.current_thread())
        cancellation.when_cancelled(self.go.release)
        self.begun.release()
        assert self.go.acquire(timeout=deadline_s)
        if self.error:
            raise self.error
        return [Recall(q) for q in queries]

    def wait_begun(self) -> None:
        assert self.begun.acquire(timeout=LONG_S)


@pytest.fixture
def recalling() -> Recalling:
    return Recalling()


@pytest.fixture
def worker(recalling: Recalling) -> Iterator[RecallWorker]:
    opened = RecallWorker(recalling, most=2)  # type: ignore[arg-type]
    yield opened
    opened.close()


def test_submitting_does_not_wait_and_the_result_comes(worker: RecallWorker, recalling: Recalling) -> None:
    ticket = worker.submit(["a", "b"], deadline_s=LONG_S)
    recalling.wait_begun()
    assert not ticket.done()
    recalling.go.release()
    found = ticket.result()
    assert [(r.query, r.state) for r in found] == [("a", "fetched"), ("b", "fetched")]
    assert ticket.done()
    assert ticket.result(0) == found, "it may be taken again"
    nothing = worker.submit([], deadline_s=LONG_S)
    assert (nothing.done(), nothing.result()) == (True, [])


@pytest.mark.parametrize("error", [None, RuntimeError("broke")], ids=["found", "failed"])
def test_a_ticket_that_was_missed_is_late_and_a_failure_stays_one(
    worker: RecallWorker, recalling: Recalling, error: Exception | None
) -> None:
    recalling.error = error
    ticket = worker.submit(["a"], deadline_s=LONG_S)
    (missed,) = ticket.result(0)
    assert (missed.state, missed.reason, missed.memories) == ("late", "DEADLINE_EXCEEDED", ())
    recalling.go.release()
    (found,) = ticket.result()
    assert (found.state, found.error) == (("failed", "RuntimeError: broke") if error else ("late", ""))


def test_a_recall_that_hangs_keeps_nobody_waiting_and_too_many_are_skipped(
    worker: RecallWorker, recalling: Recalling
) -> None:
    hanging, other = (worker.submit([name], deadline_s=LONG_S) for name in ("hangs", "a"))
    recalling.wait_begun()
    recalling.wait_begun()
    (skipped,) = worker.submit(["b"], deadline_s=LONG_S).result(0)
    assert (skipped.state, skipped.error) == ("skipped", "BUSY: 2 recalls are under way already")
    hanging.cancel()
    assert hanging.result(0)[0].reason == "CANCELLED"
    recalling.go.release()
    assert other.result()[0].state == "fetched"


def test_closing_resolves_everything_frees_who_waits_and_ends_the_threads(
    worker: RecallWorker, recalling: Recalling
) -> None:
    tickets = [worker.submit([name], deadline_s=LONG_S) for name in "ab"]
    found: list[Recall] = []
    waiter = threading.Thread(target=lambda: found.extend(tickets[0].result()))
    waiter.start()
    worker.close()
    worker.close()
    waiter.join(LONG_S)
    assert {t.result(0)[0].error for t in tickets} == {"CANCELLED: the model was closed"}
    assert found == tickets[0].result(0)
    assert not any(thread.is_alive() for thread in recalling.threads)
    assert worker.submit(["late"], deadline_s=LONG_S).result(0)[0].reason == "MODEL_CLOSED"


ENDS = """
import sys, threading
from edge_client import EdgeModel, Token
model = EdgeModel.open(sys.argv[1], sys.argv[2], deadline_s=60)
threading.Thread(target=lambda: list(model.generate("Who?")), daemon=True).start()
input()  # the test says when the service has been called
"""


def test_a_program_that_ends_without_closing_does_not_wait_for_a_recall(tiny: Bundle, service: FakeService) -> None:
    """Issue 17: it waited for the recall's deadline."""
    called, over = threading.Event(), threading.Event()
    service.before = lambda *_: called.set() or (over.wait(60) and None)  # type: ignore[func-returns-value]
    command = [sys.executable, "-c", ENDS, str(tiny.folder), service.address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as process:
        assert called.wait(60)
        begun = time.monotonic()
        _, said = process.communicate(b"\n", timeout=60)
        took_s = time.monotonic() - begun
    over.set()
    assert (process.returncode, said) == (0, b"")
    assert took_s < 20, "the recall's deadline is 60 s"


@pytest.mark.parametrize("wrong", [{"lead_tokens": -1}, {"deadline_s": 0}, {"deadline_s": float("nan")}])
def test_a_policy_that_cannot_be_followed_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        RecallPolicy(**wrong)  # type: ignore[arg-type]
