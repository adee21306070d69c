"""Memory that nobody uses any more, given back to the system.

The C library keeps what is freed for allocations to come: of a model that was closed, most of its weights. On a
device other programs need it.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def return_free_memory() -> None:
    """Give back every free page of the heap: milliseconds, a tenth of a second for a whole model's. Never raises.

    For the moment after something large was dropped; other threads go on, but wait if they allocate. Nothing
    happens where the C library has no such call (only glibc has), and while Python ends.
    """
    if not sys.is_finalizing() and (trim := _malloc_trim()) is not None:
        trim(0)


@cache  # every CDLL makes a class of its own, which waits for Python's collector
def _malloc_trim() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes = (ctypes.c_size_t,)
    return trim
