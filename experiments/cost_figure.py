"""The paper's figure 4 for any shape: what a piece of knowledge costs in each format, by how often it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from memory_model.cli.options import console
from memory_model.config import PRESETS
from memory_model.errors import InvalidInput
from memory_model.eval.costs import KnowledgeCosts, knowledge_costs


def plot_costs(name: str, costs: KnowledgeCosts, path: Path) -> None:
    """Draw the figure as an SVG (or what the ending says), the same bytes for the same model."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    interval = costs.interval
    low, high = interval or (0.1, 1e4)
    uses = np.logspace(np.log10(low) - 1.5, np.log10(high) + 1.5, 200)
    lines = (
        ("in the weights (lower bound)", "#1f6fb4", [costs.implicit(n) for n in uses]),
        ("explicit memory", "#c03a2b", [costs.explicit(n) for n in uses]),
        ("text in the prompt (lower bound)", "#3a8f3a", [costs.external(n) for n in uses]),
    )
    cheapest = np.min([values for _, _, values in lines], axis=0)
    floor = cheapest.min() / 2
    with mpl.rc_context({"svg.hashsalt": "memory3", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
        axes.fill_between(uses, floor, cheapest, color="#dddddd", linewidth=0)
        for label, colour, values in lines:
            axes.loglog(uses, values, color=colour, label=label)
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


def cost_figure(
    shape: Annotated[str, typer.Argument(help=f"One of {', '.join(PRESETS)}.")] = "memory3-2b",
    out: Annotated[Path, typer.Option(help="Figure to write: .svg, .png or .pdf.")] = Path(
        "docs/images/cost.svg"
    ),
) -> None:
    """Draw total cost against usage count (paper, figure 4)."""
    if shape not in PRESETS:
        raise InvalidInput(f"no shape is called {shape!r}: give one of {', '.join(PRESETS)}")
    plot_costs(shape, knowledge_costs(PRESETS[shape]()), out)
    console.print(f"figure in [bold]{out}[/bold]")
