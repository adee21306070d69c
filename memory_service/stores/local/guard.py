"""Many readers or one writer: FAISS lets nobody search an index while vectors are added to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager


class ReadersOrWriter:
    """A writer keeps readers out for a short work; those who waited for it go before the next one."""

    def __init__(self) -> None:
        # Taken by itself: a condition does so in Python, and every search twice.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._readers = 0
        self._waiting = 0
        self._writing = False
        self._reading = _Reading(self)

    def reading(self) -> AbstractContextManager[None]:
        """Held together with other readers."""
        return self._reading

    @property
    def is_free(self) -> bool:
        """Whether reading would not have to wait, at this moment."""
        return not self._writing

    def _begin_reading(self) -> None:
        with self._lock:
            waited = False
            while self._writing:
                self._waiting += not waited
                waited = True
                self._changed.wait()
            if waited:
                self._waiting -= 1
                self._changed.notify_all()
            self._readers += 1

    def _end_reading(self) -> None:
        with self._lock:
            self._readers -= 1
            if not self._readers and self._writing:
                self._changed.notify_all()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Held alone."""
        with self._lock:
            while self._writing or self._waiting:
                self._changed.wait()
            self._writing = True
            while self._readers:
                self._changed.wait()
        try:
            yield
        finally:
            with self._lock:
                self._writing = False
                self._changed.notify_all()


class _Reading(AbstractContextManager[None]):
    """One for all readers: it holds nothing of its own. A class, because a generator costs every search more."""

    def __init__(self, guard: ReadersOrWriter) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        self._guard._begin_reading()

    def __exit__(self, *_: object) -> None:
        self._guard._end_reading()
