"""Which heads read: what the answers lose without each one's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from memory_model.cli.options import (
    FACTBOOK,
    AdapterOption,
    DataOption,
    ModelOption,
    StopAfterOption,
    ThreadsOption,
    console,
    progress_bars,
    use_threads,
)
from memory_model.cli.training_data import fact_batches

_SHOWN = 16


def rank_heads(
    model: ModelOption = None,
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    out: Annotated[Path, typer.Option(help="JSON; what was measured is kept.")] = Path("build/heads.json"),
    batches: Annotated[int, typer.Option(help="Batches to measure on.")] = 3,
    select: Annotated[int, typer.Option(help="Heads to choose, one by one, for the budget.")] = 6,
    pool: Annotated[int, typer.Option(help="Heads to choose from, the best of the ranking; 0 is all.")] = 0,
    stop_after: StopAfterOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Measure which heads read memory, choose the ones to keep, and print them for `adapt --heads`.

    First every head's memory is left out alone; then heads are added one by one, each time the one that helps
    most. Needs an adapter tuned with `memory-model adapt --heads all`, so that every head is a candidate.
    """
    from memory_model.data.conversations import Sizes
    from memory_model.models.load import load_model
    from memory_model.train.head_ranking import HeadRuler, Ranking, rank

    use_threads(threads)
    loaded = load_model(model, adapter)
    loaded.model.bfloat16()
    sizes = Sizes(turns=1, conversations=14, unanswerable=0.0, as_text=0.0, taught=0.0)
    maker = fact_batches(loaded, data, seed=77, sizes=sizes)
    ruler = HeadRuler(loaded.model, [maker.next() for _ in range(batches)], loaded.writer.prefix)
    found = Ranking.begun(out, loaded.model_id, batches)
    with progress_bars() as progress:
        task = progress.add_task("heads", total=None)
        for count, _ in enumerate(rank(ruler, found, select, pool), 1):
            found.save(out)
            progress.update(task, completed=count)
            if count == stop_after:
                break
    show = Table("layer.head", "loss without it", title=f"with all heads: {found.loss_whole:.3f}")
    for name, loss in found.ranked()[:_SHOWN]:
        show.add_row(name, f"{loss:.3f}")
    console.print(show)
    for name, loss in found.chosen.items():
        console.print(f"with {name} too: {loss:.3f}")
    if len(found.chosen) < min(select, pool or len(ruler.heads)):
        console.print(
            f"{len(found.losses)} of {len(ruler.heads)} heads measured, run the same command to go on"
        )
        return
    tokens = {f"{h.layer}.{h.head}": h.tokens for h in ruler.heads}
    print("--heads " + ",".join(f"{name}:{tokens[name]}" for name in found.chosen))


def register(app: typer.Typer) -> None:
    """Add this file's command to the program."""
    app.command("rank-heads")(rank_heads)
