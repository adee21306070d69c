"""The figures of docs/quality.md: small SVG files that come out the same from the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from memory_model.eval.results import Ablation, BytesPoint, CodecCurve, Reading, Sight
from memory_model.eval.targets import AIM_BYTES, PAPER_BYTES

_STYLE: Any = {
    "svg.hashsalt": "memory3", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
}  # fmt: skip
_CONDITIONS = {
    "none": "no memory", "memory_retrieved": "retrieved memories", "memory": "memory",
    "memory_exact": "memory, no codec",
    "rag": "reference as text",
}  # fmt: skip
_PANELS = {
    "output": "attention output lost (share)",
    "divergence": "divergence of predictions (nats a token)",
}
_MOST_HEADS = 24
Groups = Sequence[tuple[str, Mapping[str, Mapping[str, float]]]]
"""(name, scores by condition) of each cluster of bars."""


def f1_against_bytes(path: Path, points: Sequence[BytesPoint], codecs: CodecCurve | None = None) -> None:
    """F1 over bytes of codes a memory: budgets of heads and tokens, other codecs, and the shipped point.

    Open marks are natural questions; bars are standard errors.
    """
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(7, 4.4))
        for point in sorted(points, key=lambda p: p.bytes):
            name = "other heads or tokens" if point.read == "exact" else "through the codec"
            color, mark = ("C3", "*") if point.shipped else ("C0", "o")
            axes.errorbar(
                point.bytes, point.f1, point.f1_error or 0, markersize=11 if point.shipped else 5,
                fmt=mark, color=color, elinewidth=0.8,
                zorder=4 if point.shipped else 3, label="shipped" if point.shipped else name,
            )  # fmt: skip
            if point.natural:
                axes.errorbar(
                    point.bytes, point.natural["f1"], point.natural.get("f1_error", 0), fmt=mark,
                    markersize=11 if point.shipped else 5, fillstyle="none", color=color, elinewidth=0.8,
                    label="shipped, natural questions" if point.shipped else "natural questions",
                )  # fmt: skip
            short = point.label.partition(":")[0] if len(point.label) > 30 else point.label
            axes.annotate(
                short, (point.bytes, point.f1), xytext=(4, 4), textcoords="offset points", fontsize=6
            )
        scored = [p for p in codecs.points if p.scores] if codecs else []
        for codec in scored:
            assert codec.scores is not None
            axes.errorbar(
                codec.memory_bytes, codec.scores["f1"], codec.scores.get("f1_error", 0), fmt="s", markersize=4,
                color="C2", elinewidth=0.8, zorder=3, label="other codecs",
            )  # fmt: skip
        for bar, name in ((PAPER_BYTES, "the paper's size"), (AIM_BYTES, "aim")):
            axes.axvline(bar, color="grey", linewidth=0.8, linestyle="--")
            axes.annotate(name, (bar, axes.get_ylim()[0]), rotation=90, fontsize=7, ha="right", va="bottom")
        axes.set(xscale="log", xlabel="bytes of codes a memory", ylabel="token F1, five memories")
        marks, labels = axes.get_legend_handles_labels()
        once = dict(zip(labels, marks, strict=True))
        axes.legend(
            once.values(), once.keys(), fontsize=7, frameon=False, ncols=3, loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
        )  # fmt: skip
        _save(figure, path)


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


def ablation_bars(path: Path, ablation: Ablation) -> None:
    """F1 of each adapter, a panel for each kind of question."""
    kinds = list(dict.fromkeys(kind for step in ablation.steps for kind in step.scores))
    panels = {kind: [(s.name, s.scores[kind]) for s in ablation.steps if kind in s.scores] for kind in kinds}
    condition_bars(path, panels)


def head_losses(path: Path, reading: Reading) -> None:
    """What each head's memory is worth: loss that is added without it, the most first."""
    shown = sorted(reading.losses, key=lambda entry: -entry.loss)[:_MOST_HEADS]
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 3.2))
        axes.bar(range(len(shown)), [entry.loss - reading.loss_whole for entry in shown], zorder=3)
        axes.set_xticks(range(len(shown)), [f"{e.layer}.{e.head}" for e in shown], rotation=90, fontsize=7)
        axes.set(xlabel="layer.head", ylabel="loss added without it (nats)")
        _save(figure, path)


def head_map(path: Path, sight: Sight, shipped: Sequence[tuple[int, int]]) -> None:
    """A map of the heads: what the answers lose when one of them cannot look far back; shipped ones marked."""
    lost = np.full((max(e.head for e in sight.losses) + 1, max(e.layer for e in sight.losses) + 1), np.nan)
    for entry in sight.losses:
        lost[entry.head, entry.layer] = entry.loss - sight.loss_whole
    with plt.rc_context({**_STYLE, "axes.grid": False}):
        figure, axes = plt.subplots(figsize=(8, 1.6 + 0.25 * len(lost)))
        image = axes.imshow(lost, aspect="auto", cmap="viridis", vmin=0)
        for layer, head in shipped:
            axes.text(layer, head, "●", color="white", ha="center", va="center", fontsize=8)
        axes.set(
            xlabel="layer", ylabel="KV head", yticks=range(len(lost)),
            title=f"{sight.model}: nats lost when one head sees only {sight.reach} tokens (● memory heads)",
        )  # fmt: skip
        figure.colorbar(image, ax=axes, shrink=0.8)
        _save(figure, path)


def codec_curve(path: Path, curve: CodecCurve) -> None:
    """What codecs lose over their bytes, a line for each family."""
    families = list(dict.fromkeys(point.family for point in curve.points))
    with plt.rc_context({**_STYLE, "axes.spines.top": True, "axes.spines.right": True}):
        figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
        for axes, (measure, label) in zip(panels, _PANELS.items(), strict=True):
            for number, family in enumerate(families):
                own = sorted(
                    (p for p in curve.points if p.family == family), key=lambda point: point.memory_bytes
                )
                axes.plot(
                    [p.memory_bytes for p in own], [getattr(p, measure) for p in own], marker="o", markersize=4,
                    color=f"C{number}", label=own[0].title,
                )  # fmt: skip
            for point in curve.points:
                if point.name == curve.shipped:
                    at = point.memory_bytes, getattr(point, measure)
                    axes.plot(*at, marker="*", markersize=14, color="C3", zorder=5)
            axes.axvline(AIM_BYTES, color="grey", linewidth=0.8, linestyle="--")
            axes.set(xscale="log", yscale="log", xlabel="bytes of codes a memory", title=label)
        panels[0].legend(fontsize=7)
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
