"""The paper's figure of total cost against usage count, for any model: three formats, and where memory wins."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from memory_model.eval.costs import KnowledgeCosts

COLOURS = {"implicit": "#1f6fb4", "explicit": "#c03a2b", "external": "#3a8f3a"}


def plot_costs(name: str, costs: KnowledgeCosts, path: Path) -> None:
    """Draw the figure as an SVG (or what the ending says), the same bytes for the same model."""
    interval = costs.interval
    low, high = interval or (0.1, 1e4)
    uses = np.logspace(np.log10(low) - 1.5, np.log10(high) + 1.5, 200)
    lines = {
        "implicit": ("in the weights (lower bound)", [costs.implicit(n) for n in uses]),
        "explicit": ("explicit memory", [costs.explicit(n) for n in uses]),
        "external": ("text in the prompt (lower bound)", [costs.external(n) for n in uses]),
    }
    cheapest = np.min([values for _, values in lines.values()], axis=0)
    floor = cheapest.min() / 2
    with mpl.rc_context({"svg.hashsalt": "memory3", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
        axes.fill_between(uses, floor, cheapest, color="#dddddd", linewidth=0)
        for kind, (label, values) in lines.items():
            axes.loglog(uses, values, color=COLOURS[kind], label=label)
        if interval:
            for count in interval:
                axes.axvline(count, color="#555555", linewidth=0.8, linestyle=":")
                axes.annotate(
                    f"{count:.3g}" if count < 100 else f"{float(f'{count:.3g}'):,.0f}", (count, floor), xytext=(3, 4),
                    textcoords="offset points",
                )  # fmt: skip
        axes.set(
            xlabel="expected usage count", ylabel="total cost (TFLOP)", title=f"Cost of a piece of knowledge, {name}",
            xlim=(uses[0], uses[-1]), ylim=(floor, max(costs.implicit_write, costs.memory_write) * 30),
        )  # fmt: skip
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 0.1), frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata)
        plt.close(figure)
