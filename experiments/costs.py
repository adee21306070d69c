"""Compute costs of knowledge, as the paper's appendix A counts them (TFLOP, lower-order terms omitted), and figure 4.

Checked against the printed numbers: 0.308 to write a memory, 1.44e-4 to read it, 0.624 to read the same
reference as text (RAG), 2.24 to train it into the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from memory_model.cli.options import ModelOption
from memory_model.config import PRESETS, ModelConfig, parse_budget
from memory_model.errors import InvalidInput
from memory_model.models.architectures import config_of
from memory_model.models.folder import ModelFolder
from memory_model.models.tensor_files import read_json

_TRAIN_TOKENS = 2048


@dataclass(frozen=True)
class KnowledgeCosts:
    """What one piece of knowledge (a reference) costs in each of the three formats, in TFLOP (appendix A).

    Trained into the weights it costs `implicit_write`, once; as explicit memory `memory_write` once and
    `memory_read` at each use; as text `text_read` at each use.
    """

    implicit_write: float
    memory_write: float
    memory_read: float
    text_read: float

    def implicit(self, uses: float) -> float:
        """Total after `uses` uses; reading weights is counted as free, as the paper does."""
        return self.implicit_write

    def explicit(self, uses: float) -> float:
        """Total after `uses` uses."""
        return self.memory_write + self.memory_read * uses

    def external(self, uses: float) -> float:
        """Total after `uses` uses; storing text is free."""
        return self.text_read * uses

    @property
    def interval(self) -> tuple[float, float] | None:
        """The uses between which explicit memory is the cheapest format; None when it never is."""
        if self.text_read <= self.memory_read or self.implicit_write <= self.memory_write:
            return None
        first = self.memory_write / (self.text_read - self.memory_read)
        last = (self.implicit_write - self.memory_write) / self.memory_read
        return (first, last) if first < last else None


def knowledge_costs(config: ModelConfig) -> KnowledgeCosts:
    """The costs of a model's shape and budget; raises InvalidInput for one without memory heads."""
    memory, d, width = config.memory, config.hidden, config.query_width
    if not memory.heads:
        raise InvalidInput(f"{config.name} has no memory heads, so nothing can be read: give a memory budget")
    tokens, chunk, layers = memory.reference_tokens, memory.chunk_tokens, config.layers
    projections = 2 * d * width + 2 * d * config.head_dim * config.kv_heads
    mlp = 3 * d * config.mlp_width
    # A.1: the reference is trained on once, in sequences of 2048 tokens.
    layer = tokens * (projections + mlp) + tokens * _TRAIN_TOKENS * width
    implicit_write = 6 * (layers * layer + tokens * config.vocabulary * d)
    # A.2: the reference is encoded up to the last memory layer; each memory layer selects its sparse tokens.
    encoded, selecting = memory.memory_layers[-1] + 1, len(memory.memory_layers)
    writing = encoded * (tokens * projections + tokens**2 * width)
    memory_write = 2 * (writing + (encoded - 1) * tokens * mlp + selecting * tokens**2 * width)
    # A.2: a chunk attends to one memory's sparse tokens; every KV head serves a group of query heads.
    memory_read = 2 * 2 * chunk * memory.budget * config.group * config.head_dim
    # A.3, a lower bound: the reference runs as text in the prompt, and one chunk reads it.
    reading = layers * (tokens * projections + 2 * tokens * (tokens / 2 + chunk) * width)
    text_read = 2 * (reading + (layers - 1) * tokens * mlp)
    return KnowledgeCosts(*(flop / 1e12 for flop in (implicit_write, memory_write, memory_read, text_read)))


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


def cost(
    shape: Annotated[
        str, typer.Argument(help="memory3-2b, qwen2.5-1.5b, smollm2-135m, or a Hugging Face config.json.")
    ] = "",
    model: ModelOption = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw cost against usage count: .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Print a model's shape and from which usage count on knowledge is cheapest as memory (paper, appendix A).

    Of a shape, or of a model folder with its own budget.
    """
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
    if figure is not None:
        plot_costs(config.name, costs, figure)


def _config(shape: str, model: Path | None) -> ModelConfig:
    """A preset, a config.json with the paper's budget, or a model folder; the packaged one where nothing is given."""
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
