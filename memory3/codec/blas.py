"""Matrix products of numpy on the thread that computes them, and no other.

OpenBLAS spreads a product over all cores, and its threads spin for milliseconds after it, on the decoder's core too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy  # noqa: F401  # loaded, so that its library is there to be found
from threadpoolctl import OpenBLASController, ThreadpoolController

_products = threading.Lock()


@cache
def _libraries() -> ThreadpoolController:
    """Each OpenBLAS; looked for once, because that takes milliseconds."""
    return ThreadpoolController().select(internal_api="openblas")


@contextmanager
def one_thread() -> Iterator[None]:
    """For `a @ b` within: it takes one thread, one thread of the program at a time; all is then as it was before."""
    with _products:
        OpenBLASController.clear_controlling_thread(force=True)  # it obeys the thread alone that limited it first
        with _libraries().limit(limits=1):
            yield
