"""The figures of docs/quality.md: small SVG files that come out the same from the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

_STYLE: Any = {
    "svg.hashsalt": "memory3", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
}  # fmt: skip
_CONDITIONS = {
    "none": "no memory", "memory_retrieved": "retrieved memories", "memory": "memory",
    "memory_exact": "memory, no codec",
    "rag": "reference as text",
}  # fmt: skip
Groups = Sequence[tuple[str, Mapping[str, Mapping[str, float]]]]
"""(name, scores by condition) of each cluster of bars."""


def condition_bars(path: Path, panels: Mapping[str, Groups], score: str = "f1") -> None:
    """Clusters of bars, conditions side by side; one panel below the other, by title ("" for none)."""
    every = [scores for groups in panels.values() for _, scores in groups]
    names = [c for c in _CONDITIONS if any(c in conditions for conditions in every)]
    width = 0.8 / max(1, len(names))
    with plt.rc_context(_STYLE):
        figure, rows = plt.subplots(len(panels), figsize=(6.8, 0.6 + 2.8 * len(panels)), squeeze=False)
        for axes, (title, groups) in zip(rows[:, 0], panels.items(), strict=True):
            for place, condition in enumerate(names):
                at = [
                    (number, float(conditions[condition][score]))
                    for number, (_, conditions) in enumerate(groups)
                    if score in conditions.get(condition, {})
                ]
                errors = [
                    float(conditions[condition].get(f"{score}_error", 0))
                    for _, conditions in groups
                    if score in conditions.get(condition, {})
                ]
                axes.bar(
                    [x - 0.4 + (place + 0.5) * width for x, _ in at], [y for _, y in at], width * 0.92,
                    label=_CONDITIONS[condition], color=f"C{place}", zorder=3,
                    yerr=errors if any(errors) else None, error_kw={"elinewidth": 0.8, "zorder": 4},
                )  # fmt: skip
            axes.set_xticks(range(len(groups)), [name for name, _ in groups], fontsize=8)
            axes.set_ylim(0, 1)
            axes.set_ylabel({"f1": "token F1", "exact_match": "exact match"}.get(score, score))
            axes.set_title(title, fontsize=9, loc="left")
        figure.legend(
            *rows[0, 0].get_legend_handles_labels(), fontsize=7, ncols=len(names), loc="lower center",
            bbox_to_anchor=(0.5, 0.9 + 0.03 * len(panels)), frameon=False,
        )  # fmt: skip
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
