"""A model's shape and what its memories cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from memory_model.cli.options import ModelOption, console

if TYPE_CHECKING:
    from memory_model.config import ModelConfig


def cost(
    shape: Annotated[
        str, typer.Argument(help="memory3-2b, qwen2.5-1.5b, smollm2-135m, or a Hugging Face config.json.")
    ] = "",
    model: ModelOption = None,
    out: Annotated[Path | None, typer.Option(help="Figure to write: .svg, .png or .pdf.")] = None,
) -> None:
    """Print a model's shape and from which usage count on knowledge is cheapest as memory (paper, appendix A).

    Of a shape, or of a model folder with its own budget. The figure is the paper's figure 4.
    """
    from memory_model.eval.costs import knowledge_costs, plot_costs

    config = _config(shape, model)
    costs, memory = knowledge_costs(config), config.memory
    print(
        f"{config.name}: {config.layers} layers, {config.query_heads} / {config.kv_heads} heads of {config.head_dim}"
    )
    print(f"{config.parameters():,} parameters, {config.parameters(embeddings=False):,} without embeddings")
    print(f"{len(memory.heads)} memory heads, {memory.vectors:,} vectors in a memory")
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
    if out is not None:
        plot_costs(config.name, costs, out)
        console.print(f"figure in [bold]{out}[/bold]")


def _config(shape: str, model: Path | None) -> ModelConfig:
    """A preset, a config.json with the paper's budget, or a model folder; the packaged one where nothing is given."""
    from memory_model.config import PRESETS, parse_budget
    from memory_model.errors import InvalidInput
    from memory_model.eval.rows import read_json
    from memory_model.models.architectures import config_of
    from memory_model.models.folder import ModelFolder

    if not shape or (shape == ModelFolder.open().name and model is None):
        return ModelFolder.open(model).config()
    if model is not None:
        raise InvalidInput("give a shape or --model, not both")
    if shape.endswith(".json"):
        config = config_of(read_json(Path(shape)), Path(shape).resolve().parent.name)
        return config.with_memory(parse_budget("paper", config))
    if shape not in PRESETS:
        raise InvalidInput(
            f"no shape is called {shape!r}: give one of {', '.join(PRESETS)}, or a config.json"
        )
    return PRESETS[shape]()
