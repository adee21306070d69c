"""Work in a thread of its own, and an interrupt that hits only who waits for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

import pytest

from edge_client.cancellation import Cancellation
from edge_client.interruptible import interruptible


def test_the_work_is_done_in_another_thread_and_its_value_and_errors_come_back() -> None:
    assert interruptible(lambda _: threading.current_thread()) is not threading.current_thread()

    def fails(_: Cancellation) -> NoReturn:
        raise KeyError("of the work")

    with pytest.raises(KeyError, match="of the work"):
        interruptible(fails)


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """Ctrl-C as in a terminal, also where the tests run in the background and it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
def test_an_interrupt_cancels_the_work_and_waits_for_its_end() -> None:
    ended = []

    def work(cancellation: Cancellation) -> None:
        cancellation.when_cancelled(lambda: ended.append("told"))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        cancellation.sleep(60)
        ended.append("over" if cancellation.cancelled else "not cancelled")

    with pytest.raises(KeyboardInterrupt):
        interruptible(work)
    assert ended == ["told", "over"]
