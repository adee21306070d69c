"""Retrievals on their way to the store's reading threads: what waits together goes and comes back together.

To wake a thread for each retrieval, and the event loop for each answer, costs as much as a fast store's search. So a
thread that is awake takes what waits, another one is woken only when the first in the queue has waited `_HOLD_NS`, and
answers go back in groups: when nothing is left to do, or when the first of a group is that old. A slow store's answers
therefore hardly wait for each other, and a lone caller never waits. A store that gains by it is asked for several
callers at once (`Store.searches_together`).

What a store has at hand in memory it answers at once, on the event loop (`Store.retrieve_at_once`): a thread and the
way back cost more than that search. After what was not at hand, or had to be read, the next ones go to threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import resource
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from memory_service.stores import KnowledgeBase, Query, Retrieved, Store

_HOLD_NS = 500_000
_TOGETHER = 8
_LONG_NS = 2_000_000
_OF_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # Linux counts them by thread
_LEFT_AFTER_NONE, _LEFT_AFTER_LONG = 7, 255


class Answer(NamedTuple):
    """What the store found; when it was asked and when it had answered, by `time.perf_counter_ns`."""

    retrieved: Retrieved
    began_ns: int
    ended_ns: int


class _Waiting(NamedTuple):
    base: KnowledgeBase
    query: Query
    answer: asyncio.Future[Answer]
    since_ns: int
    context: contextvars.Context


_Done = list[tuple[_Waiting, "Answer | BaseException"]]


class ReadQueue:
    """Belongs to the event loop that calls `retrieve`."""

    def __init__(self, store: Store, readers: Executor, threads: int) -> None:
        """threads: of `readers` that may work for this queue at the same time."""
        self._store = store
        self._readers = readers
        self._threads = threads
        self._waiting: deque[_Waiting] = deque()
        self._awake = 0
        self._left = 0  # retrievals that are left to the threads before the store is asked on the loop again
        self._faults = resource.getrusage(_OF_THREAD).ru_majflt
        self._lock = threading.Lock()

    async def retrieve(self, base: KnowledgeBase, query: Query) -> Answer:
        """The store's answer, raised if it is an error. A caller that is gone is not asked for."""
        answer = self._at_once(base, query)
        if answer is not None:
            return answer
        loop = asyncio.get_running_loop()
        waiting = _Waiting(
            base, query, loop.create_future(), time.perf_counter_ns(), contextvars.copy_context()
        )
        with self._lock:
            self._waiting.append(waiting)
            late = waiting.since_ns - self._waiting[0].since_ns > _HOLD_NS
            wake = self._awake == 0 or (late and self._awake < self._threads)
            self._awake += wake
        if wake:
            try:
                self._readers.submit(self._work, loop)
            except BaseException:
                with self._lock:
                    self._awake -= 1
                raise
        return await waiting.answer

    def _at_once(self, base: KnowledgeBase, query: Query) -> Answer | None:
        """On the event loop: what the store has at hand."""
        if self._left:
            self._left -= 1
            return None
        began_ns = time.perf_counter_ns()
        retrieved = self._store.retrieve_at_once(base, query)
        ended_ns = time.perf_counter_ns()
        if ended_ns - began_ns > _LONG_NS and self._met_disk():
            self._left = _LEFT_AFTER_LONG
        elif retrieved is None:
            self._left = _LEFT_AFTER_NONE
        return None if retrieved is None else Answer(retrieved, began_ns, ended_ns)

    def _met_disk(self) -> bool:
        """Whether pages of the files were read since this was asked last; a busy machine makes answers long, too."""
        faults = resource.getrusage(_OF_THREAD).ru_majflt
        more, self._faults = faults > self._faults, faults
        return more

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: takes what waits until nothing is left."""
        done: _Done = []
        oldest_ns = 0
        while True:
            with self._lock:
                taken = self._take()
                if not taken and not done:
                    self._awake -= 1
                    return
            if not taken or (done and time.perf_counter_ns() - oldest_ns > _HOLD_NS):
                loop.call_soon_threadsafe(_deliver, done)
                done = []
            taken = [waiting for waiting in taken if not waiting.answer.cancelled()]
            if not taken:
                continue
            first = not done
            done += zip(taken, self._ask(taken), strict=True)
            if first:
                oldest_ns = time.perf_counter_ns()

    def _take(self) -> list[_Waiting]:
        """The next one, with those behind it that the store likes to be asked for at the same time."""
        if not self._waiting:
            return []
        taken = [self._waiting.popleft()]
        if self._store.searches_together:
            while self._waiting and len(taken) < _TOGETHER and self._waiting[0].base is taken[0].base:
                taken.append(self._waiting.popleft())
        return taken

    def _ask(self, taken: Sequence[_Waiting]) -> Sequence[Answer | BaseException]:
        began_ns, first = time.perf_counter_ns(), taken[0]
        try:
            if len(taken) == 1:
                found = [first.context.run(self._store.retrieve, first.base, first.query)]
            else:
                queries = [waiting.query for waiting in taken]
                found = first.context.run(self._store.retrieve_together, first.base, queries)
        except BaseException as error:
            if len(taken) == 1:
                return [error]
            return [self._ask([waiting])[0] for waiting in taken]  # whose error it is
        ended_ns = time.perf_counter_ns()
        return [Answer(retrieved, began_ns, ended_ns) for retrieved in found]


def _deliver(done: _Done) -> None:
    for waiting, answer in done:
        if waiting.answer.done():
            continue  # its caller is gone
        if isinstance(answer, BaseException):
            waiting.answer.set_exception(answer)
        else:
            waiting.answer.set_result(answer)
