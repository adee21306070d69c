"""F1 against bytes: the same weights with smaller and larger budgets of heads and tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.options import HELD_OUT_QUESTIONS, LimitOption, QuestionsOption, StopAfterOption
from memory_model.cli.options import (
    AdapterOption,
    CodecOption,
    NaturalOption,
    ThreadsOption,
    console,
    progress_bars,
    use_threads,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.results import BytesPoint, Scores
    from memory_model.config import MemoryConfig, MemoryHead, ModelConfig

_TOKENS = (128, 96, 64, 32)


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
    limit: LimitOption = 50,
    stop_after: StopAfterOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Answer the held-out questions with smaller and larger budgets of heads and tokens: F1 against bytes a memory.

    Same weights, products in bfloat16; other budgets than the whole one are read as exact key-values, so that what is
    measured is the choice of heads and tokens (`codec-curve` measures the codec), and counted with the codec's bytes a
    vector. The whole budget is measured through the codec too. With --natural every point answers natural questions
    too; --natural and --more may be added to a curve that was measured without.
    """
    from experiments.results import BytesCurve
    from memory_model.config import parse_budget
    from memory_model.eval.rows import open_rows
    from memory_model.eval.subject import Subject

    use_threads(threads)
    rows = open_rows(questions, limit)
    people = open_rows(natural, limit) if natural is not None else []
    subject = Subject.open(None, adapter, codec)
    loaded, memory_codec = subject.loaded, subject.bank.format.codec
    added = list(parse_budget(more, loaded.config).heads) if more else []
    vector_bytes = memory_codec.code_bytes / memory_codec.together
    memory = loaded.config.memory
    loaded.config.with_memory(replace(memory, heads=(*memory.heads, *added)))  # raises for heads it has not
    found = BytesCurve.begun(out, loaded.model_id, len(rows), len(people))
    known = {point.label: point for point in found.points}
    wanted = budgets(loaded.config, added, vector_bytes)
    waiting = [b for b in wanted if b.label not in known or (people and not known[b.label].natural)]
    with progress_bars() as progress:
        task = progress.add_task("budgets", total=len(waiting))
        for budget in waiting[: stop_after or None]:
            old = known.get(budget.label)
            asked = [[] if old else rows, [] if old and old.natural else people]
            answers = progress.add_task(budget.label[:40], total=sum(map(len, asked)))
            scores = _scores(adapter, codec, budget, asked, partial(progress.advance, answers))
            progress.remove_task(answers)
            point = old or _point(budget, vector_bytes, scores[0] or {})
            own = budget.coded and adapter is None and codec is None
            found = found.with_point(replace(point, natural=scores[1] or point.natural, shipped=own))
            found.save(out)
            progress.advance(task)
    console.print(
        f"{len(found.points)} points in [bold]{out}[/bold]; `python -m experiments report` shows them"
    )


def budgets(config: ModelConfig, added: Sequence[MemoryHead] = (), vector_bytes: float = 1.0) -> list[Budget]:
    """The points of the curve: the whole budget, fewer tokens, the paper's way, more heads.

    added: heads that the larger budgets have besides, one more in each, up to the paper's bytes.
    """
    from experiments.page import PAPER_BYTES
    from memory_model.config import uniform_budget

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


def _point(budget: Budget, vector_bytes: float, scores: Scores) -> BytesPoint:
    from experiments.results import BytesPoint

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
    from memory_model.eval.conditions import Evaluation
    from memory_model.eval.subject import Subject
    from memory_model.models.load import load_model

    if budget.coded:
        subject, condition = Subject.open(None, adapter, codec), "memory"
    else:
        loaded, condition = load_model(adapter=adapter, memory=budget.memory), "memory_exact"
        exact = MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim))
        subject = Subject.of(loaded, exact)
    scores: list[Scores | None] = []
    with subject.half():
        for rows in asked:
            run = Evaluation(subject, rows, [condition], batch=20)
            scores.append(run.run(progress)[condition].summary() if rows else None)
    return scores
