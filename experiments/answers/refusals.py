"""The trade between refusing and answering, as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memory3.errors import InvalidInput
from memory_model.models.tensor_files import read_json
from memory_model.terminal import console


def refusal_curve(
    calibration: Annotated[Path, typer.Argument(help="What `memory-model calibrate --json` wrote.")],
    out: Annotated[Path, typer.Option(help="SVG to write.")] = Path("build/refusals.svg"),
    bias: Annotated[float | None, typer.Option(help="Mark the bias next to it; default: the chosen one.")] = None,
    alone: Annotated[bool, typer.Option(help="The curve of questions that read one memory.")] = False,
) -> None:
    """Draw rightly against wrongly refused questions for every bias, one bias marked with its standard errors."""
    from matplotlib import pyplot as plt

    found = read_json(calibration)
    try:
        of, most_wrong = found["bias_alone" if alone else "bias"], found["most_wrong"]
        points, wanted = of["curve"], of["chosen"] if bias is None else bias
        unanswerable = next(iter(points[0]["rightly"]))
        marked = min((point["bias"] for point in points), key=lambda measured: abs(measured - wanted))
        figure, side = plt.subplots(figsize=(5.4, 3.6))
        y = [point["rightly"][unanswerable]["mean"] for point in points]
        for name in points[0]["wrongly"]:
            x = [point["wrongly"][name]["mean"] for point in points]
            (line,) = side.plot(x, y, label=name)
            for point in (p for p in points if p["bias"] == marked):
                wrong, right = point["wrongly"][name], point["rightly"][unanswerable]
                side.errorbar(wrong["mean"], right["mean"], right["error"], wrong["error"], "o", color=line.get_color())
    except (KeyError, TypeError, IndexError, StopIteration) as error:
        raise InvalidInput(f"{calibration} is not what `memory-model calibrate --json` writes") from error
    side.axvline(most_wrong, color="grey", linestyle=":", label="most refused wrongly")
    side.set(xlim=(-0.01, 0.31), ylim=(0, 1), xlabel="refused wrongly", ylabel=f"refused rightly: {unanswerable}")
    side.legend(fontsize=8)
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
    console.print(f"curve over {len(points)} biases, o: bias {marked:g}, in [bold]{out}[/bold]")
