"""`PlacedCodes`: codes and where their vectors go, such as one memory's into its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PlacedCodes:
    """codes uint8 [n, code_bytes], blocks int64 [n], places int64 [n * together], rows float32 [m, head_dim].

    The `together` vectors of code i are written to the rows that places[i * together:][:together] number; the other
    rows are left as they are. All C-contiguous.
    """

    codes: np.ndarray
    blocks: np.ndarray
    places: np.ndarray
    rows: np.ndarray
