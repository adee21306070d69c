"""What searches must not see while a batch is being written: its new rows before the commit, the old ones after it.

An engine without transactions shows every row as soon as it is there. So a search asks what is hidden, leaves that out,
and is waited for: a row is hidden before it is inserted, or removed, only when every search that knows nothing of
that has ended. Between the two the batch is switched from one to the other, for a search all at once.

    hide(new)      wait     insert, commit
    hide(old)      wait     remove
    show()
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_NOTHING: frozenset[int] = frozenset()


@dataclass
class _Moment:
    """What is hidden at a moment, and how many searches of then go on."""

    hidden: frozenset[int] = _NOTHING
    searching: int = 0
    ended: threading.Condition = field(default_factory=threading.Condition)


class Visibility:
    """Ids of one store's references that are hidden, by knowledge base. Thread-safe; one batch at a time writes."""

    def __init__(self) -> None:
        self._moments: dict[int, _Moment] = {}
        self._earlier: dict[int, list[_Moment]] = {}  # whose searches may still go on
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def searching(self, kb: int) -> Iterator[frozenset[int]]:
        """For the time of a search: the ids that it must leave out."""
        with self._lock:
            moment = self._moments.setdefault(kb, _Moment())
            with moment.ended:
                moment.searching += 1
        try:
            yield moment.hidden
        finally:
            with moment.ended:
                moment.searching -= 1
                moment.ended.notify_all()

    def hide(self, kb: int, memory_ids: Sequence[int]) -> None:
        """Hides these ids and no others; returns when no search goes on that does not know of it."""
        self._change(kb, _Moment(frozenset(memory_ids)))
        with self._lock:
            earlier = self._earlier.pop(kb, [])
        for moment in earlier:
            with moment.ended:
                moment.ended.wait_for(lambda: moment.searching == 0)  # noqa: B023  called before the next moment

    def show(self, kb: int) -> None:
        """Hides nothing more."""
        self._change(kb, _Moment())

    def _change(self, kb: int, moment: _Moment) -> None:
        with self._lock:
            if before := self._moments.get(kb):
                self._earlier.setdefault(kb, []).append(before)
            self._moments[kb] = moment
