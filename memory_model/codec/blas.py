"""Matrix products of numpy on the thread that computes them, and no other.

OpenBLAS spreads a product over all cores, and its threads spin for milliseconds after it, on the decoder's core too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy  # noqa: F401  # loaded, so that its library is there to be found
from threadpoolctl import ThreadpoolController

_NAMES = tuple(f"{before}openblas_%s_num_threads{after}" for before in ("", "scipy_") for after in ("", "64_", "_64"))
_products = threading.Lock()


@cache
def _libraries() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """What reads and sets the threads of each OpenBLAS, for the whole process; threadpoolctl obeys one thread only."""
    # Looked for once: that takes milliseconds. Only libraries with threads of their own, as numpy's wheels have: what
    # OpenMP is told holds for the thread that tells it.
    found = ThreadpoolController().select(internal_api="openblas").lib_controllers
    loaded = [library.dynlib for library in found if library.threading_layer == "pthreads"]
    pairs = [(library, name) for library in loaded for name in _NAMES if hasattr(library, name % "set")]
    return [(getattr(library, name % "get"), getattr(library, name % "set")) for library, name in pairs]


@contextmanager
def one_thread() -> Iterator[None]:
    """For `a @ b` within: it takes one thread, one thread of the program at a time; all is then as it was before."""
    with _products:
        before = [threads() for threads, _ in _libraries()]
        for _, set_threads in _libraries():
            set_threads(1)
        try:
            yield
        finally:
            for (_, set_threads), number in zip(_libraries(), before, strict=True):
                set_threads(number)
