"""docs/studies.md and its figures from the numbers under docs/data: `python -m experiments report`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from experiments.results import Ablation, BytesCurve

PAPER_BYTES, AIM_BYTES = 39_424, 20_160
"""Codes of one memory: the paper's model, and what a default model is to take."""
_STYLE: Any = {
    "svg.hashsalt": "memory3", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
}  # fmt: skip
_CONDITIONS = {"memory_exact": "memory, no codec", "rag": "reference as text"}
_ERRORS = "±: standard error of the mean over the questions."


def page(curve: BytesCurve, ablation: Ablation) -> str:
    """The whole page."""
    return "\n".join((
        "# Studies\n\nMade by `python -m experiments report` from the numbers under `docs/data`; do not edit. "
        "`python -m experiments --help`\nlists the studies. Each goes on where it was stopped.\n",
        _bytes_part(curve), _ablation_part(ablation),
    ))  # fmt: skip


def _bytes_part(curve: BytesCurve) -> str:
    """F1 against bytes a memory."""
    names = ["F1", "exact match", "natural: F1", "natural: NLL"]
    lines = [
        f"| setting | heads | tokens | bytes a vector | bytes a memory | {' | '.join(names)} | |",
        "|---" * (6 + len(names)) + "|",
    ]
    for p in sorted(curve.points, key=lambda p: p.bytes):
        natural = p.natural or {}
        scored = _with_error({"f1": p.f1, "f1_error": p.f1_error or 0.0}), f"{p.exact_match:.3f}"
        cells = (*scored, _with_error(natural), _number(natural, "nll"))
        lines.append(
            f"| {p.label} | {p.heads} | {p.tokens} | {p.code_bytes:g} | {p.bytes:,} | {' | '.join(cells)} | "
            f"{'shipped' if p.shipped else ''} |"
        )
    return (
        "## F1 against bytes\n\n![token F1 against bytes of codes a memory](images/study-bytes.svg)\n\n"
        f"`budget-curve`: {curve.rows} questions about held-out countries and {curve.natural_rows} natural ones, "
        f"{curve.date}, model\n{curve.model_id[:12]}, five memories, the same weights throughout, products in "
        "bfloat16. Other budgets than the shipped one are\nread as exact key-values and counted with the codec's "
        f"bytes a vector; the shipped point is read through the codec.\n{_ERRORS}\n\n" + "\n".join(lines) + "\n"
    )  # fmt: skip


def _ablation_part(ablation: Ablation) -> str:
    """What each step of tuning brought."""
    columns = list(
        dict.fromkeys((kind, c) for step in ablation.steps for kind, found in step.scores.items() for c in found)
    )  # fmt: skip
    heads = " | ".join(f"{kind}, `{c}`: F1, exact" for kind, c in columns)
    lines = [f"| tuning | steps | tuned on | {heads} |", "|---" * (3 + len(columns)) + "|"]
    for step in ablation.steps:
        scores = [step.scores.get(kind, {}).get(condition, {}) for kind, condition in columns]
        cells = [f"{_with_error(s)}, {_number(s, 'exact_match')}" if s else "" for s in scores]
        lines.append(f"| {step.name} | {step.steps} | {step.tuned_on} | {' | '.join(cells)} |")
    days = sorted(step.date for step in ablation.steps)
    dates = " to ".join(dict.fromkeys((days[0], days[-1])))
    return (
        "## What each step of tuning brought\n\n![token F1 by step of tuning](images/study-ablation.svg)\n\n"
        f"`ablation`: {ablation.rows} questions of each kind, five memories, without codec, {dates}. Products in "
        "bfloat16, in float32\nwhere answers of an earlier evaluation were scored ([log](log.md)). "
        f"{_ERRORS}\n\n" + "\n".join(lines) + "\n"
    )  # fmt: skip


def _with_error(scores: Mapping[str, float]) -> str:
    return f"{scores['f1']:.3f} ± {scores.get('f1_error', 0.0):.3f}" if "f1" in scores else ""


def _number(scores: Mapping[str, float], name: str) -> str:
    return f"{scores[name]:.3f}" if name in scores else ""


def write_plots(curve: BytesCurve, ablation: Ablation, folder: Path) -> None:
    """Write study-bytes.svg and study-ablation.svg; the same numbers give the same bytes."""
    _f1_against_bytes(folder / "study-bytes.svg", curve)
    _ablation_bars(folder / "study-ablation.svg", ablation)


def _f1_against_bytes(path: Path, curve: BytesCurve) -> None:
    """Budgets of heads and tokens; open marks are natural questions, bars are standard errors."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(7, 4.4))
        for point in sorted(curve.points, key=lambda p: p.bytes):
            color, mark, size = ("C3", "*", 11) if point.shipped else ("C0", "o", 5)
            style: Any = {"fmt": mark, "color": color, "markersize": size, "elinewidth": 0.8}
            name = "shipped" if point.shipped else "other heads or tokens"
            axes.errorbar(point.bytes, point.f1, point.f1_error or 0, label=name, **style)
            if point.natural:
                error = point.natural.get("f1_error", 0)
                axes.errorbar(
                    point.bytes, point.natural["f1"], error, fillstyle="none", label=f"{name}, natural questions",
                    **style,
                )  # fmt: skip
            short = point.label.partition(":")[0] if len(point.label) > 30 else point.label
            axes.annotate(
                short, (point.bytes, point.f1), xytext=(4, 4), textcoords="offset points", fontsize=6
            )
        for at, name in ((PAPER_BYTES, "the paper's size"), (AIM_BYTES, "aim")):
            axes.axvline(at, color="grey", linewidth=0.8, linestyle="--")
            axes.annotate(name, (at, axes.get_ylim()[0]), rotation=90, fontsize=7, ha="right", va="bottom")
        axes.set(xscale="log", xlabel="bytes of codes a memory", ylabel="token F1, five memories")
        once = {label: mark for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        axes.legend(once.values(), once.keys(), fontsize=7, frameon=False, ncols=2, loc="lower center",
                    bbox_to_anchor=(0.5, 1.0))  # fmt: skip
        _save(figure, path)


def _ablation_bars(path: Path, ablation: Ablation) -> None:
    """F1 of each adapter, a panel for each kind of question."""
    kinds = list(dict.fromkeys(kind for step in ablation.steps for kind in step.scores))
    width = 0.8 / len(_CONDITIONS)
    with plt.rc_context(_STYLE):
        figure, rows = plt.subplots(len(kinds), figsize=(6.8, 0.6 + 2.8 * len(kinds)), squeeze=False)
        for axes, kind in zip(rows[:, 0], kinds, strict=True):
            steps = [(s.name, s.scores[kind]) for s in ablation.steps if kind in s.scores]
            for place, (condition, label) in enumerate(_CONDITIONS.items()):
                have = [(n, scores[condition]) for n, (_, scores) in enumerate(steps) if condition in scores]
                axes.bar(
                    [n - 0.4 + (place + 0.5) * width for n, _ in have], [s["f1"] for _, s in have], width * 0.92,
                    label=label, color=f"C{place}", zorder=3, yerr=[s.get("f1_error", 0) for _, s in have],
                    error_kw={"elinewidth": 0.8, "zorder": 4},
                )  # fmt: skip
            axes.set_xticks(range(len(steps)), [name for name, _ in steps], fontsize=8)
            axes.set_ylim(0, 1)
            axes.set_ylabel("token F1")
            axes.set_title(kind, fontsize=9, loc="left")
        rows[0, 0].legend(fontsize=7, frameon=False)
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
