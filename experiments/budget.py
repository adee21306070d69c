"""F1 against bytes: the same weights with smaller and larger budgets of heads and tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_model.cli.options import (
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
from memory_model.cli.training_data import fact_batches, parse_budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from memory_model.config import MemoryConfig, MemoryHead, ModelConfig
    from memory_model.eval.results import BytesCurve, BytesPoint, Scores

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
    vector. The whole budget is measured through the codec too. The last budgets come from each head's own loss with
    fewer tokens, measured before them. With --natural every point answers natural questions too; --natural and --more
    may be added to a curve that was measured without.
    """
    from experiments.token_budget import steps_of, token_losses
    from memory_model.data.conversations import Sizes
    from memory_model.eval.results import BytesCurve, TokenLoss
    from memory_model.eval.rows import read_rows
    from memory_model.eval.subject import Subject

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
    count = stop_after or 10**6  # measurements that are left for this run

    def answered(found: BytesCurve, wanted: list[Budget], progress: Progress) -> tuple[BytesCurve, int]:
        """The curve with budgets that it has not got, as many as are left; and how many these were."""
        known = {point.label: point for point in found.points}
        waiting = [b for b in wanted if b.label not in known or (people and not known[b.label].natural)]
        task = progress.add_task("budgets", total=len(waiting), visible=bool(waiting[:count]))
        for budget in waiting[:count]:
            old = known.get(budget.label)
            asked = [[] if old else rows, people if not (old and old.natural) else []]
            answers = progress.add_task(budget.label[:40], total=sum(map(len, asked)))
            told = _scores(adapter, codec, budget, asked, partial(progress.advance, answers))
            progress.remove_task(answers)
            point = old or _point(budget, vector_bytes, told[0] or {})
            own = budget.coded and adapter is None and codec is None
            found = found.with_point(replace(point, natural=told[1] or point.natural, shipped=own))
            found.save(out)
            progress.advance(task)
        return found, len(waiting)

    with progress_bars() as progress:
        found, done = answered(found, budgets(loaded.config, added, vector_bytes), progress)
        count -= done
        have = {(t.layer, t.head, t.tokens) for t in found.token_losses}
        todo = [(h, n) for h, n in steps_of(memory) if (h.layer, h.head, n) not in have]
        task = progress.add_task("tokens of each head", total=len(todo), visible=bool(todo) and count > 0)
        if todo and count > 0:
            sizes = Sizes(turns=1, conversations=14, unanswerable=0.0, as_text=0.0, taught=0.0)
            maker = fact_batches(loaded, data, seed=79, sizes=sizes)
            drawn = [maker.next() for _ in range(_BATCHES)]
            for head, tokens, loss in token_losses(loaded.model, drawn, loaded.writer.prefix, todo[:count]):
                measured = TokenLoss(head.layer, head.head, tokens, round(loss, 4))
                found = replace(found, token_losses=(*found.token_losses, measured))
                found.save(out)
                progress.advance(task)
        count -= len(todo)
        if count > 0:
            found, done = answered(found, measured_budgets(memory, found), progress)
            count -= done
    _show(found)
    if count < 0 or (stop_after and count == 0):
        console.print("more may be to measure: run the same command to go on")


def budgets(config: ModelConfig, added: Sequence[MemoryHead] = (), vector_bytes: float = 1.0) -> list[Budget]:
    """What the curve begins with: the whole budget, fewer tokens, the paper's way, more heads.

    added: heads that the larger budgets have besides, one more in each, up to the paper's bytes.
    """
    from memory_model.config import uniform_budget
    from memory_model.eval.targets import PAPER_BYTES

    memory = config.memory
    whole = f"{len(memory.heads)} heads x {max(h.tokens for h in memory.heads)} tokens"
    found = [Budget(f"{whole}, through the codec", memory, coded=True)]
    for tokens in _TOKENS:
        heads = tuple(replace(h, tokens=min(tokens, h.tokens)) for h in memory.heads)
        found.append(Budget(f"{len(heads)} heads x {tokens} tokens", replace(memory, heads=heads)))
    every = config.layers * config.kv_heads
    paper = replace(memory, heads=uniform_budget(config.layers, config.kv_heads, 8))
    found.append(Budget(f"{every} heads x 8 tokens (the paper's way)", paper))
    for number in range(1, len(added) + 1):
        larger = replace(memory, heads=(*memory.heads, *added[:number]))
        if larger.vectors * vector_bytes <= PAPER_BYTES:
            names = ", ".join(f"{h.layer}.{h.head}" for h in added[:number])
            found.append(Budget(f"{len(larger.heads)} heads: the shipped and {names}", larger))
    return found


def measured_budgets(memory: MemoryConfig, curve: BytesCurve) -> list[Budget]:
    """Budgets of fewer vectors that follow from the losses by token that the curve holds, all of them."""
    from experiments.token_budget import allocate

    heads_by_place = {(h.layer, h.head): h for h in memory.heads}
    curves: dict[MemoryHead, dict[int, float]] = {}
    for t in curve.token_losses:
        curves.setdefault(heads_by_place[t.layer, t.head], {})[t.tokens] = t.loss
    found: dict[str, Budget] = {}
    for vectors in _VECTORS:
        chosen = allocate(curves, vectors)
        label = "measured: " + ", ".join(f"{h.layer}.{h.head} x {h.tokens}" for h in chosen)
        if chosen:
            found.setdefault(label, Budget(label, replace(memory, heads=chosen)))
    return list(found.values())


def _point(budget: Budget, vector_bytes: float, scores: Scores) -> BytesPoint:
    from memory_model.eval.results import BytesPoint

    tokens = sorted({h.tokens for h in budget.memory.heads})
    return BytesPoint(
        budget.label, len(budget.memory.heads), " to ".join(str(n) for n in dict.fromkeys((tokens[0], tokens[-1]))),
        round(vector_bytes, 2), round(budget.memory.vectors * vector_bytes), "codes" if budget.coded else "exact",
        scores["f1"], scores["exact_match"], scores["nll"], f1_error=scores["f1_error"],
    )  # fmt: skip


def _scores(
    adapter: Path | None, codec: Path | None, budget: Budget, asked: list[list[Any]], progress: Any
) -> list[Scores | None]:
    """Scores of each list of questions, None for an empty one."""
    from memory_model.codec.codec import ExactCodec
    from memory_model.codec.payload import MemoryFormat
    from memory_model.eval.subject import Subject
    from memory_model.models.load import load_model

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
