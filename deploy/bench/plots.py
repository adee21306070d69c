"""The look of all figures: small SVG files, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

_STYLE: Any = {
    "svg.hashsalt": "memory3", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
}  # fmt: skip


@contextmanager
def drawing(path: Path, width: float = 6.4, height: float = 3.4, columns: int = 1) -> Iterator[Any]:
    """Axes to draw on (a row of them for several columns), written to `path` at the end without a date."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained")
        try:
            yield axes
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, metadata={"Date": None})
        finally:
            plt.close(figure)
