"""Threads that do what is small first: a call of one line does not wait behind the documents of others."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_SECONDS_OF_ONE = 0.5
_MOST_S = 30.0


class FairThread:
    """One thread. Work is done in the order of its arrival, to which half a second is added for each unit of its size.

    So small work overtakes large work, also what has waited for a while; large work waits for 30 s more at most.
    """

    def __init__(self, name: str) -> None:
        self._waiting: list[tuple[float, int, Future[Any], Callable[[], Any]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, size: int, work: Callable[[], Any]) -> Future[Any]:
        """size: how many references it is about. A future that is cancelled before its turn costs nothing."""
        future: Future[Any] = Future()
        at = time.monotonic() + min(_MOST_S, _SECONDS_OF_ONE * size)
        with self._changed:
            if self._closed:
                raise RuntimeError("the service has stopped")
            heapq.heappush(self._waiting, (at, next(self._numbers), future, work))
            self._changed.notify()
        return future

    def shutdown(self) -> None:
        """Waits for all that was submitted."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closed:
                        return
                    self._changed.wait()
                _, _, future, work = heapq.heappop(self._waiting)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, work
