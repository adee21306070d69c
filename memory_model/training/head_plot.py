"""A map of the heads: what the answers lose when one of them cannot look far back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def plot_heads(found: dict[str, Any], path: Path) -> None:
    """Draw the result of `memory-model head-sight` as an SVG, the same bytes for the same figures."""
    layers = max(layer for layer, _, _ in found["ranking"]) + 1
    heads = max(head for _, head, _ in found["ranking"]) + 1
    lost = np.zeros((heads, layers))
    for layer, head, loss in found["ranking"]:
        lost[head, layer] = loss - found["loss_whole"]
    with mpl.rc_context({"svg.hashsalt": "memory3", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(8, 1.6 + 0.25 * heads), layout="constrained")
        image = axes.imshow(lost, aspect="auto", cmap="viridis", vmin=0)
        for layer, head in found["shipped"]:
            axes.text(layer, head, "●", color="white", ha="center", va="center", fontsize=8)
        axes.set(
            xlabel="layer", ylabel="KV head", yticks=range(heads),
            title=f"{found['model']}: nats lost when one head sees only {found['reach']} tokens (● memory heads)",
        )  # fmt: skip
        figure.colorbar(image, ax=axes, shrink=0.8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)
