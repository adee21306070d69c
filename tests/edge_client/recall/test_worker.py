"""The worker recalls beside its callers, every ticket is resolved, and no program waits for it at its end."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from edge_client.errors import Cancellation
from edge_client.recall.outcome import Recall
from edge_client.recall.recaller import LocalSource
from edge_client.recall.worker import RecallWorker
from memory3.files.bundle import Bundle
from testing.programs import ROOT
from tests.edge_client.fake_service import FakeService

LONG_S = 20.0


class Recalling:
    """Recalls when the test lets it: `begun` says that a recall has begun, `go` lets it end."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def recall(
        self,
        queries: Sequence[str],
        *,
        deadline_s: float = LONG_S,
        cancellation: Cancellation | None = None,
        also: LocalSource | None = None,
    ) -> list[Recall]:
        assert cancellation is not None
        cancellation.add_done_callback(lambda _: self.go.release())
        self.begun.release()
        assert self.go.acquire(timeout=deadline_s)
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


def test_a_recall_that_hangs_keeps_nobody_waiting_and_too_many_are_skipped(
    worker: RecallWorker, recalling: Recalling
) -> None:
    hanging, other = (worker.submit([name], deadline_s=LONG_S) for name in ("hangs", "a"))
    recalling.wait_begun()
    recalling.wait_begun()
    (skipped,) = worker.submit(["b"], deadline_s=LONG_S).result(0)
    assert (skipped.state, skipped.error) == ("skipped", "BUSY: 2 recalls are under way already")
    hanging.end()
    assert hanging.result(0)[0].reason == "CANCELLED"
    recalling.go.release()
    assert other.result()[0].state == "fetched"


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
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert called.wait(60)
        begun = time.monotonic()
        _, said = process.communicate(b"\n", timeout=60)
        took_s = time.monotonic() - begun
    over.set()
    assert (process.returncode, said) == (0, b"")
    assert took_s < 20, "the recall's deadline is 60 s"
