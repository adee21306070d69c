"""The compute costs of a model's knowledge in each format, as a table (paper, appendix A)."""

from __future__ import annotations

from rich.table import Table

from memory3.cost import knowledge_costs
from memory_model.terminal import ModelOption, console


def cost(model: ModelOption = None) -> None:
    """Print the usage counts between which memory is the cheapest format (paper, appendix A)."""
    from memory_model.models.folder import ModelFolder

    config = ModelFolder.open(model).config()
    costs = knowledge_costs(config)
    table = Table("format", "write", "read", title=f"{config.name}: TFLOP")
    table.add_row("in the weights", f"{costs.implicit_write:.3g}", "0")
    table.add_row("explicit memory", f"{costs.memory_write:.3g}", f"{costs.memory_read:.3g}")
    table.add_row("text in the prompt", "0", f"{costs.text_read:.3g}")
    console.print(table)
    if costs.interval is None:
        console.print("explicit memory is never the cheapest")
    else:
        first, last = costs.interval
        console.print(f"explicit memory is cheapest from {first:.3g} to {float(f'{last:.3g}'):,.0f} uses")
