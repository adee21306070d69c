"""Loss plots of runs, from the metrics that they write step by step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import typer

from memory_model.cli.options import console

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from memory_model.errors import CorruptFile, InvalidInput, MissingFile


@dataclass(frozen=True)
class Curve:
    """One task of a run: steps int64 [n] in order, and losses and learning rates of these steps, float64 [n]."""

    steps: np.ndarray
    losses: np.ndarray
    rates: np.ndarray


def read_curves(folder: Path) -> dict[str, Curve]:
    """The curves of a run by task ("" where the run did not say), in the order in which tasks first came.

    A run that was resumed has some steps twice; the last time counts. A last line that was cut off is left
    out. Raises MissingFile and CorruptFile.
    """
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise MissingFile(f"no metrics at {path}: give the folder of a run (--out of adapt or continual)")
    lines = path.read_text(encoding="utf-8").splitlines()
    found: dict[int, tuple[str, float, float]] = {}
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            task, loss, rate = entry.get("task", ""), float(entry["loss"]), float(entry.get("rate", "nan"))
            # A batch that has a teacher only (keeping what the model knows) has its loss there.
            if loss == 0.0:
                loss = float(entry.get("teacher", 0.0))
            found[int(entry["step"])] = (str(task), loss, rate)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise CorruptFile(f"{path}, line {number} is no metrics: {error}") from error
    curves = {}
    for task in dict.fromkeys(task for task, _, _ in found.values()):
        own = sorted((step, loss, rate) for step, (t, loss, rate) in found.items() if t == task)
        steps, losses, rates = (np.array(column) for column in zip(*own, strict=True))
        curves[task] = Curve(steps, losses, rates)
    return curves


def smooth(values: np.ndarray, share: float) -> np.ndarray:
    """Running mean [n] of the last values with exponential weights; `share` (0..1) of all values is the memory.

    The first values are averaged over what there is, so the curve begins at the first value. Steps whose
    loss is not finite are passed over.
    """
    keep = 1 - 1 / max(1.0, share * len(values))
    result = np.empty(len(values))
    total = weight = 0.0
    for place, value in enumerate(values):
        if np.isfinite(value):
            total, weight = keep * total + value, keep * weight + 1
        result[place] = total / weight if weight else np.nan
    return result


def plot_runs(runs: Mapping[str, Mapping[str, Curve]], path: Path, smoothing: float = 0.03) -> None:
    """Losses of the runs (name -> task -> curve) on the left, learning rates on the right, to an SVG or PNG.

    An SVG has the same bytes for the same metrics. Raises InvalidInput when there is nothing to draw.
    """
    if not any(len(curve.steps) for run in runs.values() for curve in run.values()):
        raise InvalidInput("the runs have no step yet")
    with mpl.rc_context({"svg.hashsalt": "memory3", "font.size": 9}):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(9, 3.6), width_ratios=[2, 1], layout="constrained"
        )
        for name, curves in runs.items():
            for task, curve in curves.items():
                label = " · ".join(filter(None, (name if len(runs) > 1 or not task else "", task)))
                (line,) = left.plot(curve.steps, smooth(curve.losses, smoothing), label=label)
                left.plot(curve.steps, curve.losses, color=line.get_color(), alpha=0.2, linewidth=0.6)
            steps, rates = _schedule(list(curves.values()))
            right.plot(steps, rates, label=name)
        left.set(xlabel="step", ylabel="loss (nats a token)", title="Training loss")
        right.set(xlabel="step", title="Learning rate", ylim=(0, None))
        left.legend(frameon=False)
        if len(runs) > 1:
            right.legend(frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def _schedule(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    steps = np.concatenate([c.steps for c in curves])
    order = steps.argsort(kind="stable")
    return steps[order], np.concatenate([c.rates for c in curves])[order]


def plot_run(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs of adapt.")],
    out: Annotated[Path, typer.Option(help="Figure to write: .svg or .png.")] = Path("build/loss.svg"),
    smoothing: Annotated[float, typer.Option(help="Share of the steps that a point averages over.")] = 0.03,
) -> None:
    """Plot the losses of runs, by task, and their learning rates."""
    plot_runs({folder.name: read_curves(folder) for folder in folders}, out, smoothing)
    console.print(f"plot in [bold]{out}[/bold]")
