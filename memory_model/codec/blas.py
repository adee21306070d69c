"""Matrix products of numpy on the thread that computes them, and no other.

OpenBLAS spreads a product over all cores, and its threads spin for milliseconds after it, on the decoder's core too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import numpy  # noqa: F401  # loaded, so that its library is there to be found
from threadpoolctl import ThreadpoolController

_NAMES = tuple(
    f"{before}openblas_%s_num_threads{after}" for before in ("", "scipy_") for after in ("", "64_", "_64")
)


@cache
def _libraries() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """What reads and sets the threads of each OpenBLAS, for the whole process; threadpoolctl obeys one thread only."""
    # Looked for once: that takes milliseconds. Only libraries with threads of their own, as numpy's wheels have: what
    # OpenMP is told holds for the thread that tells it.
    found = ThreadpoolController().select(internal_api="openblas").lib_controllers
    loaded = [library.dynlib for library in found if library.threading_layer == "pthreads"]
    pairs = [(library, name) for library in loaded for name in _NAMES if hasattr(library, name % "set")]
    return [(getattr(library, name % "get"), getattr(library, name % "set")) for library, name in pairs]


class _OneThread:
    """A context for any number of threads at a time: the first in sets one thread, the last out what was before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[int] = []

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = [threads() for threads, _ in _libraries()]
                for _, set_threads in _libraries():
                    set_threads(1)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for (_, set_threads), before in zip(_libraries(), self._before, strict=True):
                    set_threads(before)


ON_ONE_THREAD = _OneThread()
"""`with ON_ONE_THREAD: a @ b`."""
