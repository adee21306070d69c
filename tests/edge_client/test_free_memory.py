"""What was freed in the midst of the heap goes back to the system, which the C library alone would not do."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np

from edge_client.decoder.free_memory import return_free_memory

BLOCK_BYTES, BLOCKS, KEPT_EVERY = 32 << 10, 2000, 16


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_free_pages_between_others_go_back() -> None:
    blocks = [np.ones(BLOCK_BYTES, np.uint8) for _ in range(BLOCKS)]
    kept = blocks[::KEPT_EVERY]  # the heap's end is in use, so nothing goes back by itself
    full = resident_bytes()
    del blocks
    return_free_memory()
    returned = full - resident_bytes()
    assert all(block.all() for block in kept)
    if platform.libc_ver()[0] == "glibc":
        assert returned > BLOCK_BYTES * BLOCKS // 2
