"""F1 against bytes: the same weights with smaller and larger budgets of heads and tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_model.commands.options import (
    FACTBOOK,
    HELD_OUT_QUESTIONS,
    AdapterOption,
    CodecOption,
    DataOption,
    LimitOption,
    NaturalOption,
    QuestionsOption,
    StopAfterOption,
    ThreadsOption,
    console,
    progress_bars,
    read_json,
    use_threads,
)
from memory_model.commands.training_data import fact_batches, parse_budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memory_model.config import MemoryConfig, MemoryHead
    from memory_model.evaluation.results import BytesCurve, Scores

_TOKENS = (128, 96, 64, 32)
_VECTORS = (1280, 1024, 768, 512)
_BATCHES = 2


@dataclass(frozen=True)
class Budget:
    """One point to measure; coded: read through the codec, else as exact key-values."""

    label: str
    memory: MemoryConfig
    coded: bool = False


def budget_curve(
    questions: QuestionsOption = HELD_OUT_QUESTIONS,
    out: Annotated[Path, typer.Option(help="JSON; points that are in it are kept.")] = Path(
        "docs/data/bytes_curve.json"
    ),
    natural: NaturalOption = None,
    more: Annotated[
        str,
        typer.Option(
            help="Heads to add to the whole budget one after the other, as in `adapt --heads`, such as "
            "23.2:128,23.1:128; budgets above the paper's bytes are left out."
        ),
    ] = "",
    adapter: AdapterOption = None,
    codec: CodecOption = None,
    data: DataOption = FACTBOOK,
    limit: LimitOption = 50,
    stop_after: StopAfterOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Answer the held-out questions with smaller and larger budgets of heads and tokens: F1 against bytes a memory.

    Same weights, products in bfloat16; other budgets than the whole one are read as exact key-values, so that what is
    measured is the choice of heads and tokens (`codec-curve` measures the codec), and counted with the codec's bytes a
    vector. The whole budget is measured through the codec too. Some budgets come from each head's own loss with fewer
    tokens, measured first. With --natural every point answers natural questions too; --natural and --more may be
    added to a curve that was measured without.
    """
    from memory_model.evaluation.results import BytesCurve, BytesPoint, TokenLoss
    from memory_model.evaluation.rows import read_rows
    from memory_model.evaluation.subject import Subject
    from memory_model.training.conversations import Sizes
    from memory_model.training.token_budget import steps_of, token_losses

    use_threads(threads)
    rows = list(read_rows(read_json(questions), limit))
    people = list(read_rows(read_json(natural), limit)) if natural is not None else []
    added = [parse_budget(entry).heads[0] for entry in more.split(",") if entry]
    subject = Subject.open(adapter, codec)
    loaded, memory_codec = subject.loaded, subject.bank.format.codec
    vector_bytes = memory_codec.code_bytes / memory_codec.together
    memory = loaded.config.memory
    loaded.config.with_memory(
        replace(memory, heads=(*memory.heads, *added))
    )  # refused before minutes of work
    found = BytesCurve.begun(out, loaded.model_id, len(rows), len(people))
    left = stop_after or 10**6
    with progress_bars() as progress:
        done = {(t.layer, t.head, t.tokens) for t in found.token_losses}
        todo = [(h, n) for h, n in steps_of(memory) if (h.layer, h.head, n) not in done]
        task = progress.add_task("tokens of each head", total=len(todo), visible=bool(todo))
        if todo:
            sizes = Sizes(turns=1, conversations=14, unanswerable=0.0, as_text=0.0, taught=0.0)
            maker = fact_batches(loaded, data, seed=79, sizes=sizes)
            drawn = [maker.next() for _ in range(_BATCHES)]
            for head, tokens, loss in token_losses(loaded.model, drawn, loaded.writer.prefix, todo[:left]):
                measured = TokenLoss(head.layer, head.head, tokens, round(loss, 4))
                found = replace(found, token_losses=(*found.token_losses, measured))
                found.save(out)
                progress.advance(task)
        left -= len(todo)
        wanted = budgets(loaded.config, found, added, vector_bytes) if left >= 0 else []
        known = {point.label: point for point in found.points}
        waiting = [
            b for b in wanted if b.label not in known or (people and known[b.label].natural is None)
        ]  # fmt: skip
        now = waiting[: max(0, left)]
        task = progress.add_task("budgets", total=len(waiting), visible=bool(now))
        for budget in now:
            answers = progress.add_task(budget.label[:40], total=len(rows) + len(people))
            old = known.get(budget.label)
            asked = [[] if old else rows, people if people and not (old and old.natural) else []]
            told = _scores(adapter, codec, budget, asked, lambda n, t=answers: progress.advance(t, n))
            progress.remove_task(answers)
            tokens_of = sorted({h.tokens for h in budget.memory.heads})
            f1 = told[0] or {}
            point = old or BytesPoint(
                budget.label, len(budget.memory.heads),
                " to ".join(str(n) for n in dict.fromkeys((tokens_of[0], tokens_of[-1]))),
                round(vector_bytes, 2), round(budget.memory.vectors * vector_bytes),
                "codes" if budget.coded else "exact", f1["f1"], f1["exact_match"], f1["nll"],
                shipped=budget.coded and adapter is None and codec is None, f1_error=f1["f1_error"],
            )  # fmt: skip
            found = found.with_point(replace(point, natural=told[1] or point.natural))
            found.save(out)
            progress.advance(task)
    _show(found)
    if left < 0 or len(now) < len(waiting):
        console.print("more is to be measured: run the same command to go on")


def budgets(
    config: Any, curve: BytesCurve, added: Sequence[MemoryHead] = (), vector_bytes: float = 1.0
) -> list[Budget]:
    """What the curve consists of; some of it follows from the losses by token that the curve holds.

    added: heads that the larger budgets have besides, one more in each, up to the paper's bytes.
    """
    from memory_model.config import uniform_budget
    from memory_model.evaluation.targets import PAPER_BYTES
    from memory_model.training.token_budget import allocate

    memory = config.memory
    whole = f"{len(memory.heads)} heads x {max(h.tokens for h in memory.heads)} tokens"
    found = [Budget(f"{whole}, through the codec", memory, coded=True)]
    for tokens in _TOKENS:
        heads = tuple(replace(h, tokens=min(tokens, h.tokens)) for h in memory.heads)
        found.append(Budget(f"{len(heads)} heads x {tokens} tokens", replace(memory, heads=heads)))
    every = config.layers * config.kv_heads
    paper = replace(memory, heads=uniform_budget(config.layers, config.kv_heads, 8))
    found.append(Budget(f"{every} heads x 8 tokens (the paper's way)", paper))
    for count in range(1, len(added) + 1):
        larger = replace(memory, heads=(*memory.heads, *added[:count]))
        if larger.vectors * vector_bytes <= PAPER_BYTES:
            names = ", ".join(f"{h.layer}.{h.head}" for h in added[:count])
            found.append(Budget(f"{len(larger.heads)} heads: the shipped and {names}", larger))
    heads_by_place = {(h.layer, h.head): h for h in memory.heads}
    curves: dict[MemoryHead, dict[int, float]] = {}
    for t in curve.token_losses:
        curves.setdefault(heads_by_place[t.layer, t.head], {})[t.tokens] = t.loss
    labels = {b.label for b in found}
    for vectors in _VECTORS:
        chosen = allocate(curves, vectors)
        label = "measured: " + ", ".join(f"{h.layer}.{h.head} x {h.tokens}" for h in chosen)
        if chosen and label not in labels:
            labels.add(label)
            found.append(Budget(label, replace(memory, heads=chosen)))
    return found


def _scores(
    adapter: Path | None, codec: Path | None, budget: Budget, asked: list[list[Any]], progress: Any
) -> list[Scores | None]:
    """Scores of each list of questions, None for an empty one."""
    from memory_model.codec import ExactCodec
    from memory_model.evaluation.subject import Subject
    from memory_model.memory import MemoryFormat
    from memory_model.nn.load import load_model

    if budget.coded:
        subject, condition = Subject.open(adapter, codec), "memory"
    else:
        loaded, condition = load_model(adapter=adapter, memory=budget.memory), "memory_exact"
        exact = MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim))
        subject = Subject.of(loaded, exact)
    told: list[Scores | None] = []
    with subject.half():
        for rows in asked:
            run = subject.evaluation(rows, [condition], batch=20)
            told.append(run.run([condition], progress)[condition].point() if rows else None)
    return told


def _show(curve: BytesCurve) -> None:
    title = f"{curve.rows} questions" + (f", {curve.natural_rows} natural ones" if curve.natural_rows else "")
    show = Table("budget", "bytes", "F1", "exact", "natural F1", title=title)
    for point in sorted(curve.points, key=lambda p: -p.bytes):
        natural = point.natural
        show.add_row(
            point.label, f"{point.bytes:,}", f"{point.f1:.3f} ± {point.f1_error or 0:.3f}",
            f"{point.exact_match:.3f}",
            f"{natural['f1']:.3f} ± {natural['f1_error']:.3f}" if natural else "",
        )  # fmt: skip
    Console().print(show)


def register(app: typer.Typer) -> None:
    """Add this file's command to the program."""
    app.command("budget-curve")(budget_curve)
