"""Weights in pages of 2 MB: a decoding step reads all of them, and with 4 KB pages a fifth of it is page walks.

Linux gives big pages to whoever asks for them (`madvise`, the setting of most distributions). The runtime
does not ask, so its memory is asked for here, after it has laid out its weights. A hint only: where it is
not understood or there is no such memory nothing happens.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAPS = Path("/proc/self/maps")
PAGE = 2 << 20
_MADV_HUGEPAGE = 14  # from now on, and by the kernel's daemon
_MADV_COLLAPSE = 25  # at once; Linux 6.1
_ANONYMOUS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\])?$", re.MULTILINE)


@contextmanager
def in_huge_pages() -> Iterator[None]:
    """Memory of more than 2 MB that is allocated meanwhile gets huge pages at the end. Never raises."""
    before = _anonymous()
    yield
    for start, end in _anonymous():
        for first, last in _without(start, end, before):
            first, last = -(-first // PAGE) * PAGE, last // PAGE * PAGE
            if last > first:
                _advise(first, last - first)


def _anonymous() -> list[tuple[int, int]]:
    """Writable memory of this process that belongs to no file: (start, end) of each mapping, ascending."""
    try:
        text = MAPS.read_text()
    except OSError:  # no Linux
        return []
    return [(int(start, 16), int(end, 16)) for start, end in _ANONYMOUS.findall(text)]


def _without(start: int, end: int, others: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of start..end that none of `others` (ascending) covers."""
    for first, last in others:
        if last <= start or first >= end:
            continue
        if first > start:
            yield start, first
        start = last
    if start < end:
        yield start, end


def _advise(start: int, length: int) -> None:
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None:
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if madvise(start, length, _MADV_HUGEPAGE) == 0:
        madvise(start, length, _MADV_COLLAPSE)
