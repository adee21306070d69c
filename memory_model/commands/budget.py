"""Where the bytes of a memory go: which heads read, how many tokens each keeps, and what that costs in answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_model.commands.options import (
    FACTBOOK,
    AdapterOption,
    DataOption,
    ThreadsOption,
    chat_pieces,
    console,
    fact_batches,
    progress_bars,
    read_json,
    use_threads,
)

if TYPE_CHECKING:
    from memory_model.config import MemoryConfig
    from memory_model.training.head_ranking import HeadLoss


def rank_heads(
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    out: Annotated[Path, typer.Option(help="JSON table to write.")] = Path("build/ranking.json"),
    batches: Annotated[int, typer.Option(help="Batches to measure on.")] = 3,
    vectors: Annotated[int, typer.Option(help="Vectors that a memory may have.")] = 1536,
    select: Annotated[int, typer.Option(help="Heads to choose, one by one, for the budget.")] = 6,
    pool: Annotated[int, typer.Option(help="Heads to choose from, the best of the ranking; 0 is all.")] = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Measure which heads read memory, choose the ones to keep, and print them for `adapt --heads`.

    First every head's memory is left out alone; then heads are added one by one, each time the one that
    helps most. Needs an adapter tuned with `memory-model adapt --heads all`, so that every head is a candidate.
    """
    from memory_model.nn.load import load_model
    from memory_model.training import head_ranking as ranking
    from memory_model.training.conversations import Sizes

    use_threads(threads)
    loaded = load_model(adapter=adapter)
    loaded.model.bfloat16()
    sizes = Sizes(turns=1, conversations=14, unanswerable=0.0, as_text=0.0, taught=0.0)
    maker = fact_batches(loaded, data, seed=77, sizes=sizes)
    drawn = [maker.next() for _ in range(batches)]
    prefix = loaded.writer.prefix
    with progress_bars() as progress:
        task = progress.add_task("without each head", total=batches * len(loaded.config.memory.heads))
        base, ranked = ranking.rank_heads(loaded.model, drawn, prefix, lambda: progress.advance(task))
        tables = {n: t for n, t in ranking.tables(ranked, vectors).items() if len(t.heads) <= 30}
        task = progress.add_task("budgets", total=len(tables))
        losses = {}
        for name, table in tables.items():
            losses[name] = ranking.loss_of_table(loaded.model, table, drawn, prefix)
            progress.advance(task)
        task = progress.add_task("choosing heads", total=select)
        candidates = [entry.head for entry in ranked][: pool or None]
        chosen = ranking.select_heads(
            loaded.model, drawn, prefix, candidates, select,
            lambda done: progress.update(task, completed=len(done)),
        )  # fmt: skip
    steps = _rows(chosen)
    _write(out, {"loss_with_all": base, "ranking": _rows(ranked), "budgets": losses, "chosen": steps})
    _show(ranked, base, "loss without it")
    for name, loss in losses.items():
        console.print(f"{name}: {loss:.3f}")
    for layer, head, loss in steps:
        console.print(f"with {layer}.{head} too: {loss:.3f}")
    print("--heads " + ",".join(f"{c.head.layer}.{c.head.head}:{c.head.tokens}" for c in chosen))


def head_sight(
    out: Annotated[Path, typer.Option(help="JSON table to write.")] = Path("docs/data/heads.json"),
    plot: Annotated[Path, typer.Option(help="Picture to draw.")] = Path("docs/images/heads.svg"),
    data: DataOption = FACTBOOK,
    batches: Annotated[int, typer.Option(help="Batches to measure on.")] = 2,
    reach: Annotated[int, typer.Option(help="Tokens that a short-sighted head still sees.")] = 100,
    threads: ThreadsOption = 0,
) -> None:
    """Rank the heads of the plain model by what is lost when one cannot look far back (paper, remark on heads).

    Needs no tuning: the reference is text in the prompt. Marks in the picture: the shipped memory heads.
    """
    from memory_model.assets import asset
    from memory_model.nn.adapter import Adapter
    from memory_model.nn.load import DEFAULT_MODEL, load_base
    from memory_model.training.conversations import Sizes
    from memory_model.training.head_plot import plot_heads
    from memory_model.training.head_sight import rank_by_sight

    use_threads(threads)
    loaded = load_base()
    loaded.model.bfloat16()
    sizes = Sizes(turns=2, conversations=6, unanswerable=0.0, as_text=0.0, taught=1.0)
    maker = fact_batches(loaded, data, seed=78, sizes=sizes)
    drawn = [maker.next() for _ in range(batches)]
    shape = loaded.config
    with progress_bars() as progress:
        task = progress.add_task("short-sighted heads", total=shape.layers * shape.kv_heads)
        whole, ranked = rank_by_sight(
            loaded.model, drawn, loaded.writer.prefix, reach, lambda: progress.advance(task)
        )
    shipped = Adapter.load(asset(DEFAULT_MODEL, "adapter.safetensors")).memory.heads
    found = {
        "model": shape.name, "reach": reach, "batches": batches, "loss_whole": round(whole, 4),
        "ranking": _rows(ranked), "shipped": [[h.layer, h.head] for h in shipped],
    }  # fmt: skip
    _write(out, found)
    plot_heads(found, plot)
    _show(ranked, whole, "loss short-sighted")


def budget_curve(
    questions: Annotated[Path, typer.Option(help="Rows to answer.")] = Path("data/heldout_questions.json"),
    out: Annotated[Path, typer.Option(help="JSON; points that are in it are kept.")] = Path(
        "build/budget_curve.json"
    ),
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    limit: Annotated[int, typer.Option(help="Questions a point.")] = 50,
    code_bytes: Annotated[int, typer.Option(help="Bytes a vector, to count the bytes of a point.")] = 13,
    threads: ThreadsOption = 0,
) -> None:
    """Answer the held-out questions with ever smaller budgets of heads and tokens: F1 against bytes a memory.

    Same weights, exact key-values: what is measured is the choice of tokens, `codec-curve` measures the codec.
    Budgets that the command finds itself come from each head's own loss with fewer tokens.
    """
    from memory_model.codec import ExactCodec
    from memory_model.config import uniform_budget
    from memory_model.evaluation.conditions import Evaluation
    from memory_model.evaluation.memories import MemoryBank
    from memory_model.evaluation.rows import read_rows
    from memory_model.memory import MemoryFormat
    from memory_model.nn.load import load_model
    from memory_model.training.conversations import Sizes
    from memory_model.training.token_budget import allocate, token_losses

    use_threads(threads)
    rows = list(read_rows(read_json(questions), limit))
    loaded = load_model(adapter=adapter)
    memory = loaded.config.memory
    budgets: dict[str, MemoryConfig] = {
        f"{len(memory.heads)} heads x {t} tokens": replace(
            memory, heads=tuple(replace(h, tokens=min(t, h.tokens)) for h in memory.heads)
        )
        for t in (128, 96, 64, 32)
    }
    shape = loaded.config
    budgets[f"{shape.layers * shape.kv_heads} heads x 8 tokens (the paper's way)"] = replace(
        memory, heads=uniform_budget(shape.layers, shape.kv_heads, 8)
    )
    found: dict[str, Any] = read_json(out) if out.is_file() else {"model_id": loaded.model_id, "points": []}
    if found["model_id"] != loaded.model_id:
        found = {"model_id": loaded.model_id, "points": []}
    sizes = Sizes(turns=1, conversations=14, unanswerable=0.0, as_text=0.0, taught=0.0)
    maker = fact_batches(loaded, data, seed=79, sizes=sizes)
    with progress_bars() as progress:
        if "curves" not in found:
            task = progress.add_task("tokens of each head", total=len(memory.heads) * 6)
            drawn = [maker.next() for _ in range(2)]
            curves = token_losses(loaded.model, drawn, loaded.writer.prefix, lambda: progress.advance(task))
            found["curves"] = [
                [h.layer, h.head, {str(k): round(v, 4) for k, v in c.items()}] for h, c in curves.items()
            ]
            _write(out, found)
        heads = {(h.layer, h.head): h for h in memory.heads}
        measured = {
            heads[layer, head]: {int(k): v for k, v in curve.items()}
            for layer, head, curve in found["curves"]
        }
        for vectors in (1280, 1024, 768, 512):
            chosen = allocate(measured, vectors)
            name = "measured: " + ", ".join(f"{h.layer}.{h.head} x {h.tokens}" for h in chosen)
            budgets.setdefault(name, replace(memory, heads=chosen))
        done = {point["label"] for point in found["points"]}
        task = progress.add_task("budgets", total=len(budgets) - len(done & set(budgets)))
        for name, budget in budgets.items():
            if name in done:
                continue
            spent = load_model(adapter=adapter, memory=budget)
            exact = MemoryFormat(spent.config, spent.model_id, ExactCodec(spent.config.head_dim))
            run = Evaluation(MemoryBank(spent, exact), chat_pieces(spent).prompt, rows)
            scores = run.run(["memory_exact"])["memory_exact"].summary()
            found["points"].append({
                "label": name, "vectors": budget.vectors, "bytes": budget.vectors * code_bytes,
                "heads": len(budget.heads), "f1": scores["f1"], "exact_match": scores["exact_match"],
                "nll": scores["nll"], "rows": len(rows),
            })  # fmt: skip
            _write(out, found)
            progress.advance(task)
    show = Table("budget", "vectors", "bytes", "F1", "exact", title=f"{len(rows)} questions")
    for point in sorted(found["points"], key=lambda p: -p["bytes"]):
        show.add_row(
            point["label"], str(point["vectors"]), f"{point['bytes']:,}", f"{point['f1']:.3f}",
            f"{point['exact_match']:.3f}",
        )  # fmt: skip
    Console().print(show)


def _rows(ranked: list[HeadLoss]) -> list[list[Any]]:
    return [[r.head.layer, r.head.head, round(r.loss_without, 4)] for r in ranked]


def _write(path: Path, found: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(path)


def _show(ranked: list[HeadLoss], base: float, column: str) -> None:
    show = Table("layer", "KV head", column, title=f"all heads: {base:.3f}")
    for layer, head, loss in _rows(ranked)[:16]:
        show.add_row(str(layer), str(head), f"{loss:.3f}")
    console.print(show)


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command("head-sight")(head_sight)
    app.command("rank-heads")(rank_heads)
    app.command("budget-curve")(budget_curve)
