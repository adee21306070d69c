"""Products beside decoding stay on their thread, and nothing of that outlasts them."""

from __future__ import annotations

import threading

from threadpoolctl import threadpool_info, threadpool_limits

from memory_model.codec.blas import ON_ONE_THREAD


def threads() -> set[int]:
    return {e["num_threads"] for e in threadpool_info() if e.get("threading_layer") == "pthreads"}


def test_threads_that_overlap_give_back_what_was_before_all_of_them() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with ON_ONE_THREAD:
            inside.set()
            leave.wait(10)

    with threadpool_limits(2, user_api="blas"):
        thread = threading.Thread(target=other)
        with ON_ONE_THREAD:
            thread.start()
            assert inside.wait(10)
        assert threads() == {1}, "the other one is not done"
        leave.set()
        thread.join()
        assert threads() == {2}
