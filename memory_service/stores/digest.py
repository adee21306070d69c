"""The digest of a set of memories, which adding and removing keep up to date."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def digest(memory_ids: Sequence[int]) -> int:
    """XOR of ids: equal sets have equal digests, whatever the order; adding and removing are the same."""
    return int(np.bitwise_xor.reduce(np.asarray(memory_ids, np.uint64))) if len(memory_ids) else 0
