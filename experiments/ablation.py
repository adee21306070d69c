"""What each step of tuning brought: the same questions answered by adapter after adapter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.options import HELD_OUT_QUESTIONS, LimitOption, QuestionsOption, StopAfterOption
from memory_model.cli.options import (
    ModelOption,
    NaturalOption,
    ThreadsOption,
    console,
    progress_bars,
    use_threads,
)

if TYPE_CHECKING:
    from experiments.results import Scores
    from memory_model.eval.subject import Subject

_CONDITIONS = ("memory_exact", "rag")
PLAIN = "none"


@dataclass(frozen=True)
class Stage:
    """One adapter to measure. adapter: a file, or `none` for the plain model."""

    name: str
    steps: int
    adapter: str
    tuned_on: str = ""

    @classmethod
    def parse(cls, entry: str) -> Stage:
        """Parse NAME=STEPS=ADAPTER[=TUNED ON]; raises InvalidInput, or MissingFile for an adapter that is not there."""
        from memory_model.errors import InvalidInput, MissingFile

        name, *rest = entry.split("=", 3)
        if len(rest) < 2 or not name or not rest[0].isdecimal() or not rest[1]:
            raise InvalidInput(
                f"{entry!r}: write NAME=STEPS=ADAPTER or NAME=STEPS=ADAPTER=TUNED ON, such as"
                " 'facts=400=build/run/adapter.safetensors=facts alone', or 'untuned=0=none'"
            )
        if rest[1] != PLAIN and not Path(rest[1]).is_file():
            raise MissingFile(f"{name}: no adapter {rest[1]}; the plain model is called {PLAIN!r}")
        return cls(name, int(rest[0]), rest[1], *rest[2:])


def ablation(
    steps: Annotated[
        list[str],
        typer.Argument(
            help="NAME=STEPS=ADAPTER[=TUNED ON], in order; the adapter 'none' is the plain model. "
            "TUNED ON is shown beside the figures."
        ),
    ],
    out: Annotated[Path, typer.Option(help="JSON; entries of the same name and model are kept.")] = Path(
        "docs/data/ablation.json"
    ),
    model: ModelOption = None,
    questions: QuestionsOption = HELD_OUT_QUESTIONS,
    natural: NaturalOption = None,
    limit: LimitOption = 50,
    stop_after: StopAfterOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Score adapters one after the other, with five exact memories and with the reference as text.

    Computed in bfloat16 products, so figures differ in the last place from those of `python -m experiments quality`.
    """
    from experiments.results import Ablation, AblationStep, today
    from memory_model.errors import InvalidInput
    from memory_model.eval.conditions import Evaluation
    from memory_model.eval.rows import open_rows

    use_threads(threads)
    stages = [Stage.parse(entry) for entry in steps]
    if len({stage.name for stage in stages}) < len(stages):
        raise InvalidInput("two steps have the same name: each needs one of its own")
    kinds = {"held-out countries": open_rows(questions, limit)}
    if natural is not None:
        kinds["natural questions"] = open_rows(natural, limit)
    found = Ablation.load(out) if out.is_file() else Ablation(limit)
    if found.rows != limit:
        raise InvalidInput(
            f"{out} has {found.rows} questions of each kind: give --limit {found.rows} or another --out"
        )
    left = stop_after or len(stages) * len(kinds)
    with progress_bars() as progress:
        task = progress.add_task("stages", total=len(stages) * len(kinds))
        for stage in stages:
            subject = _subject(stage, model)
            model_id = subject.loaded.model_id
            step = next((s for s in found.steps if (s.name, s.model_id) == (stage.name, model_id)), None)
            scores: dict[str, dict[str, Scores]] = dict(step.scores) if step else {}
            for kind, rows in kinds.items():
                if kind not in scores and left > 0:
                    answers = progress.add_task(f"{stage.name}: {kind}", total=len(rows) * len(_CONDITIONS))
                    with subject.half():
                        run = Evaluation(subject, rows, _CONDITIONS, batch=20)
                        measured = run.run(partial(progress.advance, answers))
                    progress.remove_task(answers)
                    scores[kind] = {condition: s.summary() for condition, s in measured.items()}
                    left -= 1
                    step = AblationStep(stage.name, stage.steps, model_id, today(), dict(scores))
                progress.advance(task)
            if step is not None:
                found = found.with_step(replace(step, steps=stage.steps, tuned_on=stage.tuned_on))
                found.save(out)
    console.print(f"written to [bold]{out}[/bold]; `python -m experiments report` puts it on the page")


def _subject(stage: Stage, model: Path | None) -> Subject:
    from memory_model.codec.codec import ExactCodec
    from memory_model.codec.payload import MemoryFormat
    from memory_model.eval.subject import Subject
    from memory_model.models.load import load_base, load_model

    if stage.adapter == PLAIN:  # with the memory heads of the tuned model
        loaded = load_base(model, memory=load_model(model).config.memory)
    else:
        loaded = load_model(model, adapter=stage.adapter)
    exact = ExactCodec(loaded.config.head_dim)
    return Subject.of(loaded, MemoryFormat(loaded.config, loaded.model_id, exact))
