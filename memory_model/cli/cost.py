"""A model's shape and what its memories cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_model.cli.options import console, read_json

ShapeArgument = Annotated[
    str, typer.Argument(help="memory3-2b, smollm2-135m, or a JSON file of a model's config.")
]


def describe(name: ShapeArgument = "smollm2-135m") -> None:
    """Print a model's shape, its size and what its memories cost (paper, appendix A)."""
    from memory_model.eval.costs import memory_read_tflop, memory_write_tflop, rag_read_tflop

    config = _shape(name)
    rows: list[tuple[str, Any]] = [
        ("layers", config.layers), ("query / KV heads", f"{config.query_heads} / {config.kv_heads}"),
        ("head dimension", config.head_dim), ("parameters", f"{config.parameters():,}"),
        ("without embeddings", f"{config.parameters(embeddings=False):,}"),
        ("memory heads", len(config.memory.heads)), ("vectors in a memory", config.memory.vectors),
        ("write one memory", f"{memory_write_tflop(config):.3g} TFLOP"),
        ("read one memory", f"{memory_read_tflop(config):.3g} TFLOP"),
        ("read one reference as text", f"{rag_read_tflop(config):.3g} TFLOP"),
    ]  # fmt: skip
    show = Table("", config.name, show_header=True)
    for label, value in rows:
        show.add_row(label, str(value))
    Console().print(show)


def cost(
    name: ShapeArgument = "memory3-2b",
    out: Annotated[Path, typer.Option(help="Figure to write: .svg, .png or .pdf.")] = Path(
        "docs/images/cost.svg"
    ),
) -> None:
    """Say from which usage count on a piece of knowledge is cheapest as memory, and draw it (paper, figure 4)."""
    from memory_model.eval.cost_plot import plot_costs
    from memory_model.eval.costs import knowledge_costs

    config = _shape(name)
    costs = knowledge_costs(config)
    plot_costs(config.name, costs, out)
    show = Table(
        "format", "write", "read", "after 1 use", "after 100", "after 10,000", title=f"{config.name}, TFLOP"
    )
    for label, write, read, total in (
        ("in the weights", costs.implicit_write, 0.0, costs.implicit),
        ("explicit memory", costs.memory_write, costs.memory_read, costs.explicit),
        ("text in the prompt", 0.0, costs.text_read, costs.external),
    ):
        show.add_row(label, *(f"{value:.3g}" for value in (write, read, total(1), total(100), total(10_000))))
    Console().print(show)
    if costs.interval is None:
        print("explicit memory is never the cheapest")
    else:
        first, last = costs.interval
        print(f"explicit memory is cheapest from {first:.3g} to {float(f'{last:.3g}'):,.0f} uses")
    console.print(f"figure in [bold]{out}[/bold]")


def _shape(name: str) -> Any:
    from memory_model.config import PRESETS, ModelConfig
    from memory_model.errors import InvalidInput

    if name.endswith(".json"):
        return ModelConfig.from_dict(read_json(Path(name)))
    if name not in PRESETS:
        raise InvalidInput(f"no preset {name!r}: choose from {', '.join(PRESETS)}, or give a JSON file")
    config = PRESETS[name]()
    if name == "smollm2-135m":
        from memory_model.models.folder import ModelFolder

        config = config.with_memory(ModelFolder.open().memory)
    return config


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command()(describe)
    app.command()(cost)
