"""What each step of tuning brought: the same questions asked of adapter after adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memory_model.commands.options import (
    HELD_OUT_QUESTIONS,
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
from memory_model.commands.training_data import shipped_adapter

_CONDITIONS = ("memory_exact", "rag")


def ablation(
    steps: Annotated[
        list[str], typer.Argument(help="NAME=STEPS=ADAPTER, in order; the adapter 'none' is the plain model.")
    ],
    out: Annotated[Path, typer.Option(help="JSON; entries of the same name and model are kept.")] = Path(
        "docs/data/ablation.json"
    ),
    questions: QuestionsOption = HELD_OUT_QUESTIONS,
    natural: NaturalOption = None,
    like: Annotated[
        Path | None,
        typer.Option(help="Adapter whose memory heads the plain model gets; default: the shipped one."),
    ] = None,
    limit: LimitOption = 50,
    stop_after: StopAfterOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Score adapters one after the other, with exact memories (five) and with the reference as text.

    Computed in bfloat16 products, so figures differ in the last place from those of `quality`.
    """
    import torch

    from memory_model.codec import ExactCodec
    from memory_model.errors import InvalidInput
    from memory_model.evaluation.results import Ablation, AblationStep, Scores, today
    from memory_model.evaluation.rows import read_rows
    from memory_model.evaluation.subject import PLAIN, Subject
    from memory_model.memory import MemoryFormat
    from memory_model.nn.adapter import Adapter
    from memory_model.nn.load import load_base, load_model

    use_threads(threads)
    parsed = [_parsed(entry) for entry in steps]
    kinds = {"held-out countries": list(read_rows(read_json(questions), limit))}
    if natural is not None:
        kinds["natural questions"] = list(read_rows(read_json(natural), limit))
    found = Ablation.load(out) if out.is_file() else Ablation(limit)
    if found.rows != limit:
        raise InvalidInput(
            f"{out} has {found.rows} questions of each kind: give --limit {found.rows} or another --out"
        )
    budget = Adapter.load(like or shipped_adapter()).memory
    left = stop_after or len(parsed) * len(kinds)
    with progress_bars() as progress:
        task = progress.add_task("answers", total=len(parsed) * len(kinds))
        for name, number, path in parsed:
            loaded = load_base(memory=budget) if path == PLAIN else load_model(adapter=path)
            exact = MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim))
            subject = Subject.of(loaded, exact)
            scores: dict[str, dict[str, Scores]] = next(
                (dict(s.scores) for s in found.steps if (s.name, s.model_id) == (name, loaded.model_id)), {}
            )
            for kind, rows in kinds.items():
                progress.update(task, description=f"{name}: {kind}")
                if kind not in scores and left > 0:
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        measured = subject.evaluation(rows, _CONDITIONS, batch=20).run(_CONDITIONS)
                    scores = {**scores, kind: {c: s.summary() for c, s in measured.items()}}
                    found = found.with_step(AblationStep(name, number, loaded.model_id, today(), scores))
                    found.save(out)
                    left -= 1
                progress.advance(task)
    columns = [(kind, c) for kind in kinds for c in _CONDITIONS]
    show = Table(
        "tuning", "steps", *(f"{k}, {c}" for k, c in columns), title=f"token F1, {limit} questions of each"
    )
    for step in found.steps:
        f1 = [step.scores.get(kind, {}).get(c, {}).get("f1") for kind, c in columns]
        show.add_row(step.name, str(step.steps), *("" if x is None else f"{x:.3f}" for x in f1))
    Console().print(show)
    console.print(f"written to [bold]{out}[/bold]")


def _parsed(entry: str) -> tuple[str, int, str]:
    from memory_model.errors import InvalidInput

    try:
        name, count, path = entry.split("=")
        return name, int(count), path
    except ValueError as error:
        raise InvalidInput(f"{entry!r}: write NAME=STEPS=ADAPTER") from error


def register(app: typer.Typer) -> None:
    """Add this file's command to the program."""
    app.command()(ablation)
