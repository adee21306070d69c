"""Many readers or one writer: FAISS lets nobody search an index while vectors are added to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class ReadersOrWriter:
    """A writer keeps readers out for a short work; those who waited for it go before the next one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._waiting = 0
        self._writing = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Held together with other readers."""
        with self._changed:
            waited = False
            while self._writing:
                self._waiting += not waited
                waited = True
                self._changed.wait()
            if waited:
                self._waiting -= 1
                self._changed.notify_all()
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                if not self._readers:
                    self._changed.notify_all()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Held alone."""
        with self._changed:
            while self._writing or self._waiting:
                self._changed.wait()
            self._writing = True
            while self._readers:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
