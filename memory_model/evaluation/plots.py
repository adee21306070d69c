"""The figures of docs/quality.md: small SVG files that come out the same from the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from memory_model.evaluation.targets import AIM_BYTES, PAPER_BYTES

_STYLE: Any = {
    "svg.hashsalt": "memory3", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
}  # fmt: skip
_CONDITIONS = {
    "none": "no memory", "memory_retrieved": "retrieved memories", "memory": "memory",
    "memory_exact": "memory, no codec",
    "rag": "reference as text",
}  # fmt: skip


def f1_against_bytes(path: Path, points: Sequence[Mapping[str, Any]]) -> None:
    """Points {label, bytes, f1, shipped}: F1 over bytes of codes a memory, the shipped one marked."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 3.6))
        for point in sorted(points, key=lambda p: p["bytes"]):
            shipped = bool(point.get("shipped"))
            axes.scatter(
                point["bytes"], point["f1"], s=80 if shipped else 28, marker="*" if shipped else "o",
                color="C3" if shipped else "C0", zorder=3,
            )  # fmt: skip
            axes.annotate(
                point["label"] + (" (shipped)" if shipped else ""), (point["bytes"], point["f1"]),
                xytext=(4, 4), textcoords="offset points", fontsize=7,
            )  # fmt: skip
        for bar, name in ((PAPER_BYTES, "the paper's size"), (AIM_BYTES, "aim")):
            axes.axvline(bar, color="grey", linewidth=0.8, linestyle="--")
            axes.annotate(name, (bar, axes.get_ylim()[0]), rotation=90, fontsize=7, ha="right", va="bottom")
        axes.set_xscale("log")
        axes.set_xlabel("bytes of codes a memory")
        axes.set_ylabel("token F1, five memories")
        _save(figure, path)


def condition_bars(path: Path, groups: Sequence[tuple[str, Mapping[str, Any]]], score: str = "f1") -> None:
    """Groups (name, {condition: {score: value}}): one cluster of bars each, conditions side by side."""
    names = [c for c in _CONDITIONS if any(c in conditions for _, conditions in groups)]
    width = 0.8 / max(1, len(names))
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 3.4))
        for place, condition in enumerate(names):
            at = [
                (number, float(conditions[condition][score]))
                for number, (_, conditions) in enumerate(groups)
                if score in conditions.get(condition, {})
            ]
            axes.bar(
                [x - 0.4 + (place + 0.5) * width for x, _ in at], [y for _, y in at], width * 0.92,
                label=_CONDITIONS[condition], zorder=3,
            )  # fmt: skip
        axes.set_xticks(range(len(groups)), [name for name, _ in groups], fontsize=8)
        axes.set_ylim(0, 1)
        axes.set_ylabel({"f1": "token F1", "exact_match": "exact match"}.get(score, score))
        axes.legend(
            fontsize=7, ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, 1.16), frameon=False
        )
        _save(figure, path)


def head_losses(path: Path, ranking: Sequence[Sequence[float]], loss_with_all: float, most: int = 24) -> None:
    """Rows (layer, KV head, loss without its memory), worst loss first: what each head's memory is worth."""
    shown = ranking[:most]
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 3.2))
        axes.bar(range(len(shown)), [row[2] - loss_with_all for row in shown], zorder=3)
        axes.set_xticks(
            range(len(shown)), [f"{int(r[0])}.{int(r[1])}" for r in shown], rotation=90, fontsize=7
        )
        axes.set_xlabel("layer.head")
        axes.set_ylabel("loss added without it (nats)")
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
