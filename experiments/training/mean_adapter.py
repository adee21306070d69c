"""The mean of adapters: the step between two stages of the shipped model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from memory3.errors import InvalidInput
from memory_model.nn.adapter import Adapter
from memory_model.terminal import console


def mean_of(adapters: Sequence[Adapter]) -> Adapter:
    """Every number the mean of the adapters', of which one was tuned from the other, or both from a third.

    The memory budget is the last one's. Raises InvalidInput for adapters of other bases or shapes.
    """
    first = adapters[0]
    forms = [(a.base_sha256, a.scale, {n: (x.shape, y.shape) for n, (x, y) in a.factors.items()}) for a in adapters]
    if any(form != forms[0] for form in forms):
        raise InvalidInput("adapters of different bases, layers, ranks or scales have no mean")

    def mean(name: str, side: int) -> torch.Tensor:
        return torch.stack([one.factors[name][side] for one in adapters]).mean(0)

    factors = {name: (mean(name, 0), mean(name, 1)) for name in first.factors}
    details = {"mean_of": [one.details for one in adapters]}
    return Adapter(factors, first.scale, adapters[-1].memory, first.base_sha256, details)


def mean_adapter(
    adapters: Annotated[list[Path], typer.Argument(help="Adapter files, tuned one from another.")],
    out: Annotated[Path, typer.Option(help="Adapter file to write.")],
) -> None:
    """Write the elementwise mean of adapters; the mean of two checkpoints of a run is often better than either."""
    mean = mean_of([Adapter.load(path) for path in adapters])
    out.parent.mkdir(parents=True, exist_ok=True)
    mean.save(out)
    console.print(f"mean of {len(adapters)} adapters in [bold]{out}[/bold]")
