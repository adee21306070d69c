"""What searches leave out while a batch is written, and that the batch waits for those that do not know of it."""

from __future__ import annotations

import threading

from memory_service.stores.clickhouse.visibility import Visibility


def test_hiding_waits_for_searches_that_began_before_and_no_others() -> None:
    visibility, order = Visibility(), list[str]()
    inside, leave = threading.Event(), threading.Event()

    def search() -> None:
        with visibility.searching(1) as hidden:
            assert hidden == set()
            inside.set()
            leave.wait(60)
            order.append("search ended")

    searcher = threading.Thread(target=search)
    searcher.start()
    assert inside.wait(60)

    def write() -> None:
        visibility.hide(1, [7, 8])
        order.append("hidden")

    writer = threading.Thread(target=write)
    writer.start()
    while True:  # the new moment begins at once, the writer goes on when the old one has ended
        with visibility.searching(1) as hidden:
            if hidden == {7, 8}:
                break
    assert order == []
    leave.set()
    writer.join(60)
    searcher.join(60)
    assert order == ["search ended", "hidden"]
    with visibility.searching(2) as others:
        assert others == set()
    visibility.show(1)
    with visibility.searching(1) as hidden:
        assert hidden == set()


def test_a_search_may_fail() -> None:
    visibility = Visibility()
    try:
        with visibility.searching(1):
            raise RuntimeError("the engine is gone")
    except RuntimeError:
        visibility.hide(1, [1])  # waits for nobody


def test_hiding_does_not_wait_for_searches_that_know_of_it() -> None:
    visibility = Visibility()
    visibility.hide(1, [1])
    with visibility.searching(1) as hidden:
        assert hidden == {1}
        visibility.hide(2, [2])  # of another knowledge base
        with visibility.searching(2) as others:
            assert others == {2}


def test_hiding_waits_for_a_search_of_two_changes_ago() -> None:
    visibility, order = Visibility(), list[str]()
    visibility.hide(1, [1])
    with visibility.searching(1) as hidden:
        assert hidden == {1}
        visibility.show(1)
        writer = threading.Thread(target=lambda: (visibility.hide(1, [2]), order.append("hidden")))
        writer.start()
        while True:
            with visibility.searching(1) as now:
                if now == {2}:
                    break
        order.append("search ended")
    writer.join(60)
    assert order == ["search ended", "hidden"]
