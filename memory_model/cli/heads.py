"""Which heads read: by what is lost without each one's memory, or when each one cannot look far back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from memory_model.cli.options import (
    FACTBOOK,
    AdapterOption,
    DataOption,
    StopAfterOption,
    ThreadsOption,
    console,
    progress_bars,
    use_threads,
)
from memory_model.cli.training_data import fact_batches, shipped_adapter

if TYPE_CHECKING:
    from memory_model.eval.results import HeadEntry, Heads, Reading
    from memory_model.train.head_ranking import HeadLoss

NUMBERS = Path("docs/data/heads.json")
OutOption = Annotated[
    Path, typer.Option("--out", help="JSON, of which each command has its own part; what was measured stays.")
]
_SHOWN = 16


def rank_heads(
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    out: OutOption = NUMBERS,
    batches: Annotated[int, typer.Option(help="Batches to measure on.")] = 3,
    vectors: Annotated[int, typer.Option(help="Vectors that a memory may have.")] = 1536,
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
    from memory_model.eval.results import Reading, today
    from memory_model.models.load import load_model
    from memory_model.train import head_ranking as ranking

    use_threads(threads)
    loaded = load_model(adapter=adapter)
    loaded.model.bfloat16()
    sizes = Sizes(turns=1, conversations=14, unanswerable=0.0, as_text=0.0, taught=0.0)
    maker = fact_batches(loaded, data, seed=77, sizes=sizes)
    drawn, prefix = [maker.next() for _ in range(batches)], loaded.writer.prefix
    ruler = ranking.HeadRuler(loaded.model, drawn, prefix)
    heads = {(h.layer, h.head): h for h in ruler.heads}
    kept = _begun(out)
    found = kept.reading
    asked = (loaded.model_id, batches, vectors, len(heads))
    if found is None or (found.model_id, found.batches, found.vectors, found.heads) != asked:
        whole = round(ruler.loss(ruler.heads), 4)
        found = Reading(loaded.model_id, today(), batches, vectors, len(heads), whole)
    left = stop_after or len(heads) + len(heads) * select + 99

    def save(changed: Reading) -> Reading:
        replace(kept, reading=changed).save(out)
        return changed

    with progress_bars() as progress:
        todo = _unmeasured(heads, found.losses)
        task = progress.add_task("without each head", total=len(todo))
        for entry in ruler.without([heads[at] for at in todo[:left]]):
            found = save(replace(found, losses=(*found.losses, _entry(entry)), date=today()))
            progress.advance(task)
        left -= len(todo)
        ranked = [heads[e.layer, e.head] for e in sorted(found.losses, key=lambda e: -e.loss)]
        tables = {n: t for n, t in ranking.tables(ranked, vectors).items() if len(t.heads) <= 30}
        budgets = dict(found.budgets or {})
        task = progress.add_task("budgets", total=len(tables) - len(budgets), visible=left > 0)
        for name in [n for n in tables if n not in budgets][: max(0, left)]:
            budgets[name] = round(ranking.loss_of_table(loaded.model, tables[name], drawn, prefix), 4)
            found, left = save(replace(found, budgets=budgets)), left - 1
            progress.advance(task)
        before = [heads[e.layer, e.head] for e in found.chosen]
        task = progress.add_task("choosing heads", total=select - len(before), visible=left > 0)
        candidates = ranked[: pool or None]
        for entry in ruler.chosen(candidates, select if left > 0 else 0, before):
            found, left = save(replace(found, chosen=(*found.chosen, _entry(entry)))), left - 1
            progress.advance(task)
            if left <= 0:
                break
    _show(found.losses, found.loss_whole, "loss without it")
    for name, loss in (found.budgets or {}).items():
        console.print(f"{name}: {loss:.3f}")
    for entry_ in found.chosen:
        console.print(f"with {entry_.layer}.{entry_.head} too: {entry_.loss:.3f}")
    if len(found.chosen) < min(select, len(candidates)):
        console.print(f"{len(found.losses)} of {len(heads)} heads measured, run the same command to go on")
        return
    print("--heads " + ",".join(f"{e.layer}.{e.head}:{heads[e.layer, e.head].tokens}" for e in found.chosen))


def head_sight(
    out: OutOption = NUMBERS,
    data: DataOption = FACTBOOK,
    batches: Annotated[int, typer.Option(help="Batches to measure on.")] = 2,
    reach: Annotated[int, typer.Option(help="Tokens that a short-sighted head still sees.")] = 100,
    stop_after: StopAfterOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Rank the heads of the plain model by what is lost when one cannot look far back (paper, remark on heads).

    Needs no tuning: the reference is text in the prompt.
    """
    from experiments.head_sight import loss_as_text, losses_by_sight
    from memory_model.config import MemoryHead
    from memory_model.data.conversations import Sizes
    from memory_model.eval.results import Sight, today
    from memory_model.models.load import load_base

    use_threads(threads)
    loaded = load_base()
    loaded.model.bfloat16()
    sizes = Sizes(turns=2, conversations=6, unanswerable=0.0, as_text=0.0, taught=1.0)
    maker = fact_batches(loaded, data, seed=78, sizes=sizes)
    drawn, prefix, shape = [maker.next() for _ in range(batches)], loaded.writer.prefix, loaded.config
    tokens = shape.memory.reference_tokens
    heads = {(i, k): MemoryHead(i, k, tokens) for i in range(shape.layers) for k in range(shape.kv_heads)}
    kept = _begun(out)
    found = kept.sight
    if found is None or (found.model_id, found.batches, found.reach) != (loaded.model_id, batches, reach):
        whole = round(loss_as_text(loaded.model, drawn, prefix), 4)
        found = Sight(shape.name, loaded.model_id, today(), reach, batches, len(heads), whole)
    todo = _unmeasured(heads, found.losses)[: stop_after or None]
    with progress_bars() as progress:
        task = progress.add_task("short-sighted heads", total=len(todo))
        for entry in losses_by_sight(loaded.model, drawn, prefix, [heads[at] for at in todo], reach):
            found = replace(found, losses=(*found.losses, _entry(entry)), date=today())
            replace(kept, sight=found).save(out)
            progress.advance(task)
    _show(found.losses, found.loss_whole, "loss short-sighted")
    console.print(f"{len(found.losses)} of {found.heads} heads in [bold]{out}[/bold]")


def _begun(path: Path) -> Heads:
    from memory_model.eval.results import Heads
    from memory_model.nn.adapter import Adapter

    shipped = tuple((h.layer, h.head) for h in Adapter.load(shipped_adapter()).memory.heads)
    return replace(Heads.load(path), shipped=shipped) if path.is_file() else Heads(shipped)


def _unmeasured(heads: dict[tuple[int, int], Any], losses: Iterable[HeadEntry]) -> list[tuple[int, int]]:
    done = {(entry.layer, entry.head) for entry in losses}
    return [at for at in heads if at not in done]


def _entry(measured: HeadLoss) -> HeadEntry:
    from memory_model.eval.results import HeadEntry

    return HeadEntry(measured.head.layer, measured.head.head, round(measured.loss, 4))


def _show(losses: Sequence[HeadEntry], whole: float, column: str) -> None:
    show = Table("layer", "KV head", column, title=f"with all heads: {whole:.3f}")
    for entry in sorted(losses, key=lambda e: -e.loss)[:_SHOWN]:
        show.add_row(str(entry.layer), str(entry.head), f"{entry.loss:.3f}")
    console.print(show)


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command("head-sight")(head_sight)
    app.command("rank-heads")(rank_heads)
