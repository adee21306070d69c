"""The figure of `memory-model codec-curve`: what each codec costs over its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from memory_model.training.codec_curve import FAMILIES

_PANELS = {
    "output": "attention output lost (share)",
    "divergence": "divergence of predictions (nats a token)",
}


def plot_curve(result: dict[str, Any], path: Path, shipped: str | None = None) -> None:
    """Draw the rows of a curve as an SVG, the same bytes for the same figures; `shipped` names a row to mark."""
    with mpl.rc_context({"svg.hashsalt": "memory3", "font.size": 9}):
        figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
        for axes, (measure, label) in zip(panels, _PANELS.items(), strict=True):
            for number, (family, title) in enumerate(FAMILIES.items()):
                rows = sorted(
                    (r for r in result["rows"] if r["family"] == family), key=lambda r: r["memory_bytes"]
                )
                if rows:
                    axes.plot(
                        [r["memory_bytes"] for r in rows], [r[measure] for r in rows], marker="o", markersize=4,
                        color=f"C{number}", label=title,
                    )  # fmt: skip
            for row in result["rows"]:
                if row["name"] == shipped:
                    axes.plot(
                        row["memory_bytes"], row[measure], marker="*", markersize=14, color="C3", zorder=5
                    )
            axes.axvline(result["aim_bytes"], color="grey", linewidth=0.8, linestyle="--")
            axes.set(xscale="log", yscale="log", xlabel="bytes of codes a memory", title=label)
            axes.grid(alpha=0.3)
        panels[0].legend(fontsize=7)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)
