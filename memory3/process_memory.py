"""Memory of this process: what the system can still give, huge pages for weights, and giving freed pages back."""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

BIG_PAGE = 2 << 20
ANONYMOUS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\])?$", re.MULTILINE)


def available_bytes() -> float:
    """Memory that the system can still give, or infinity where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            kilobytes = dict(line.split(":") for line in file)["MemAvailable"].split()[0]
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    return 1024 * int(kilobytes)


def return_free_memory() -> None:
    """Give the heap's free pages to the system: glibc keeps most of a closed model, 190 of 430 MB. Never raises."""
    if not sys.is_finalizing() and sys.platform.startswith("linux") and hasattr(_libc(), "malloc_trim"):
        _libc().malloc_trim(ctypes.c_size_t(0))


@contextmanager
def in_huge_pages() -> Iterator[None]:
    """Memory that is allocated meanwhile gets pages of 2 MB, where Linux has them. Never raises.

    A step reads all weights, and with pages of 4 KB a fifth of it is page walks. Linux gives big pages on request
    (`madvise`, the setting of most distributions), and the runtime makes none.
    """
    before = _big_pages()
    yield
    for page in sorted(_big_pages() - before):
        for advice in (14, 25):  # MADV_HUGEPAGE: from now on; MADV_COLLAPSE: at once, Linux 6.1
            _libc().madvise(ctypes.c_void_p(page), ctypes.c_size_t(BIG_PAGE), advice)


def _big_pages() -> set[int]:
    """Addresses of 2 MB that lie in writable memory of this process which belongs to no file."""
    try:
        found = ANONYMOUS.findall(Path("/proc/self/maps").read_text())
    except OSError:  # no Linux
        return set()
    ranges = ((int(start, 16), int(end, 16)) for start, end in found)
    return {p for start, end in ranges for p in range(-(-start // BIG_PAGE) * BIG_PAGE, end - BIG_PAGE + 1, BIG_PAGE)}


@cache  # every CDLL makes a class of its own, which waits for Python's collector
def _libc() -> Any:
    return ctypes.CDLL(None)
