"""Callers that share the way to the store get each their own answer, whatever happens to the others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pytest

from memory_service.errors import StoreUnavailable
from memory_service.read.queue import ReadQueue
from memory_service.stores import KnowledgeBase, Query, Retrieved
from tests.memory_service.encoders import identity_of

BASE = KnowledgeBase(1, "base", "", identity_of("test"), datetime.now(timezone.utc))


class NumberedStore:
    """Answers with the query's own number; fails for negative ones; counts how many are asked at once."""

    def __init__(self, seconds: float = 0.0, *, together: bool = False) -> None:
        self._seconds = seconds
        self.searches_together = together
        self.largest_group = 0
        self._lock = threading.Lock()
        self.inside = self.most_inside = self.asked = self.asked_at_once = 0
        self.at_hand: set[int] = set()
        self.seconds_at_once = 0.0

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        with self._lock:
            self.asked += 1
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        time.sleep(self._seconds)
        with self._lock:
            self.inside -= 1
        number = int(query.vectors[0, 0])
        if number < 0:
            raise StoreUnavailable(f"query {number}")
        return Retrieved([], {number: b""}, 0, 0)

    def retrieve_at_once(self, base: KnowledgeBase, query: Query) -> Retrieved | None:
        self.asked_at_once += 1
        time.sleep(self.seconds_at_once)
        number = int(query.vectors[0, 0])
        if number not in self.at_hand:
            return None
        return Retrieved([], {number: b"at once"}, 0, 0)

    def retrieve_together(self, base: KnowledgeBase, queries: Sequence[Query]) -> list[Retrieved]:
        self.largest_group = max(self.largest_group, len(queries))
        return [self.retrieve(base, query) for query in queries]


def query(number: int) -> Query:
    return Query(np.full((1, 4), number, np.float32), 5)


def queue_on(store: NumberedStore, threads: int) -> tuple[ReadQueue, ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(threads)
    held: Any = store
    return ReadQueue(held, pool, threads), pool


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 0.002])
async def test_every_caller_gets_its_own_answer_or_its_own_error(seconds: float, together: bool) -> None:
    store = NumberedStore(seconds, together=together)
    queue, pool = queue_on(store, 2)

    async def caller(number: int) -> None:
        for turn in range(5):
            wanted = number * 10 + turn
            if number % 4 == 3:
                with pytest.raises(StoreUnavailable, match=str(-wanted)):
                    await queue.retrieve(BASE, query(-wanted))
            else:
                assert (await queue.retrieve(BASE, query(wanted))).retrieved.payloads == {wanted: b""}

    await asyncio.gather(*map(caller, range(1, 24)))
    assert store.most_inside <= 2
    pool.shutdown()


async def test_a_slow_store_gets_more_than_one_thread() -> None:
    store = NumberedStore(0.02)
    queue, pool = queue_on(store, 2)

    async def caller(number: int) -> None:
        await asyncio.sleep(0.002 * number)
        await queue.retrieve(BASE, query(number))

    await asyncio.gather(*map(caller, range(8)))
    assert store.most_inside == 2
    pool.shutdown()


async def test_those_who_wait_together_are_searched_together_where_the_store_gains_by_it() -> None:
    store = NumberedStore(0.01, together=True)
    queue, pool = queue_on(store, 1)
    answers = await asyncio.gather(*(queue.retrieve(BASE, query(number)) for number in range(12)))
    assert [list(answer.retrieved.payloads) for answer in answers] == [[number] for number in range(12)]
    assert 1 < store.largest_group <= 8
    pool.shutdown()


async def test_a_caller_that_is_gone_is_not_asked_for_and_the_others_are_answered() -> None:
    store = NumberedStore(0.02)
    queue, pool = queue_on(store, 1)
    first, gone, last = (asyncio.create_task(queue.retrieve(BASE, query(n))) for n in range(3))
    await asyncio.sleep(0.005)
    gone.cancel()
    assert [list((await task).retrieved.payloads) for task in (first, last)] == [[0], [2]]
    assert store.asked == 2
    pool.shutdown()


async def test_what_is_at_hand_is_answered_without_a_thread_and_after_a_miss_some_go_to_the_threads() -> None:
    store = NumberedStore()
    store.at_hand = set(range(100))
    queue, pool = queue_on(store, 1)
    for number in range(5):
        answer = await queue.retrieve(BASE, query(number))
        assert answer.retrieved.payloads == {number: b"at once"}
    assert store.asked == 0
    assert (await queue.retrieve(BASE, query(200))).retrieved.payloads == {200: b""}
    answers = [(await queue.retrieve(BASE, query(number))).retrieved.payloads[number] for number in range(20)]
    assert answers[0] == b""  # left to the threads, and then the store is asked again
    assert answers[-1] == b"at once"
    assert store.asked_at_once < 5 + 1 + 20
    pool.shutdown()


async def test_a_long_answer_leaves_the_next_to_the_threads_only_where_the_disk_was_read() -> None:
    store = NumberedStore()
    store.at_hand, store.seconds_at_once = set(range(100)), 0.003
    queue, pool = queue_on(store, 1)
    queue._met_disk = lambda: False  # type: ignore[method-assign]  # whether this machine reads now is chance
    for number in range(3):
        assert (await queue.retrieve(BASE, query(number))).retrieved.payloads == {number: b"at once"}
    queue._met_disk = lambda: True  # type: ignore[method-assign]
    assert (await queue.retrieve(BASE, query(3))).retrieved.payloads == {3: b"at once"}
    assert (await queue.retrieve(BASE, query(4))).retrieved.payloads == {4: b""}
    pool.shutdown()


def test_pages_that_were_read_are_noticed_once() -> None:
    queue, pool = queue_on(NumberedStore(), 1)
    queue._faults = -1
    assert queue._met_disk()
    queue._faults += 1 << 40
    assert not queue._met_disk()
    pool.shutdown()
