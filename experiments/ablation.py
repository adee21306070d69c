"""What each step of tuning brought: the same questions asked of adapter after adapter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_model.cli.options import (
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
from memory_model.cli.training_data import shipped_adapter

if TYPE_CHECKING:
    from collections.abc import Callable

    from memory_model.eval.conditions import Scores as Answered
    from memory_model.eval.results import Ablation, Scores
    from memory_model.eval.rows import Row
    from memory_model.eval.subject import Subject

_CONDITIONS = ("memory_exact", "rag")


@dataclass(frozen=True)
class Stage:
    """One adapter to measure. adapter: a file, or `none` for the plain model."""

    name: str
    steps: int
    adapter: str
    tuned_on: str = ""

    @classmethod
    def parse(cls, entry: str) -> Stage:
        """What NAME=STEPS=ADAPTER[=TUNED ON] says; raises InvalidInput, or MissingFile for an adapter that is not."""
        from memory_model.errors import InvalidInput, MissingFile
        from memory_model.eval.subject import PLAIN

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
    questions: QuestionsOption = HELD_OUT_QUESTIONS,
    natural: NaturalOption = None,
    like: Annotated[
        Path | None,
        typer.Option(help="Adapter whose memory heads the plain model gets; default: the shipped one."),
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            "--measured",
            help="File of `quality` or `eval` whose answers are taken where model and questions are the same; "
            "may be repeated.",
        ),
    ] = None,
    limit: LimitOption = 50,
    stop_after: StopAfterOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Score adapters one after the other, with exact memories (five) and with the reference as text.

    Computed in bfloat16 products, so figures differ in the last place from those of `quality`. What was measured
    before is kept: the same command goes on after an interruption, and other stages or kinds of questions are
    added to the same file. Answers that `quality` or `eval` gave already are scored instead of asked for again
    with --measured.
    """
    from memory_model.errors import InvalidInput
    from memory_model.eval.quality import scores_of_answers
    from memory_model.eval.results import Ablation, AblationStep, today
    from memory_model.eval.rows import read_rows

    use_threads(threads)
    given = [result for path in measured or [] for result in _measured(path)]
    stages = [Stage.parse(entry) for entry in steps]
    if len({stage.name for stage in stages}) < len(stages):
        raise InvalidInput("two steps have the same name: each needs one of its own")
    kinds = {"held-out countries": list(read_rows(read_json(questions), limit))}
    if natural is not None:
        kinds["natural questions"] = list(read_rows(read_json(natural), limit))
    found = Ablation.load(out) if out.is_file() else Ablation(limit)
    if found.rows != limit:
        raise InvalidInput(
            f"{out} has {found.rows} questions of each kind: give --limit {found.rows} or another --out"
        )
    left = stop_after or len(stages) * len(kinds)
    with progress_bars() as progress:
        task = progress.add_task("stages", total=len(stages) * len(kinds))
        for stage in stages:
            subject = _subject(stage, like)
            model_id = subject.loaded.model_id
            scores: dict[str, dict[str, Scores]] = next(
                (dict(s.scores) for s in found.steps if (s.name, s.model_id) == (stage.name, model_id)), {}
            )
            for kind, rows in kinds.items():
                if kind not in scores and left > 0:
                    answers = progress.add_task(f"{stage.name}: {kind}", total=len(rows) * len(_CONDITIONS))
                    known = [
                        (date, told)
                        for of, date, result in given
                        if of == model_id and (told := scores_of_answers(rows, result, _CONDITIONS))
                    ]
                    if known:
                        date, told = known[-1]
                    else:
                        date, told = (
                            today(),
                            _asked(subject, rows, partial(progress.advance, answers)),
                        )
                    progress.remove_task(answers)
                    scores = {**scores, kind: {c: s.point() for c, s in told.items()}}
                    left -= 1
                    step = AblationStep(stage.name, stage.steps, model_id, date, scores, stage.tuned_on)
                    found = found.with_step(step).ordered([s.name for s in stages])
                    found.save(out)
                progress.advance(task)
            found = found.told_of(stage.name, stage.steps, stage.tuned_on)
            found.save(out)
    _show(found, list(kinds))
    console.print(f"written to [bold]{out}[/bold]; `memory-model quality-report` puts it on the page")


def _asked(subject: Subject, rows: list[Row], progress: Callable[[int], None]) -> dict[str, Answered]:
    with subject.half():
        return subject.evaluation(rows, _CONDITIONS, batch=20).run(_CONDITIONS, progress)


def _measured(path: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """(model id, date, result with answers) of every section of a file of `quality`, or of one of `eval`."""
    from memory_model.errors import CorruptFile

    content = read_json(path)
    try:
        if "sections" not in content:
            return [(content["model_id"], content["date"], content)]
        return [(s["key"].get("model_id", ""), s["date"], s["result"]) for s in content["sections"].values()]
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{path} is no file of `memory-model quality` or `eval`: {error}") from error


def _subject(stage: Stage, like: Path | None) -> Subject:
    from memory_model.codec.codec import ExactCodec
    from memory_model.codec.payload import MemoryFormat
    from memory_model.eval.subject import PLAIN, Subject
    from memory_model.models.load import load_base, load_model
    from memory_model.nn.adapter import Adapter

    if stage.adapter == PLAIN:
        loaded = load_base(memory=Adapter.load(like or shipped_adapter()).memory)
    else:
        loaded = load_model(adapter=stage.adapter)
    return Subject.of(
        loaded, MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim))
    )


def _show(found: Ablation, kinds: list[str]) -> None:
    columns = [(kind, c) for kind in kinds for c in _CONDITIONS]
    show = Table(
        "tuning",
        "steps",
        *(f"{k}, {c}" for k, c in columns),
        title=f"token F1, {found.rows} questions of each",
    )
    for step in found.steps:
        cells = [_cell(step.scores.get(kind, {}).get(c, {})) for kind, c in columns]
        show.add_row(step.name, str(step.steps), *cells)
    Console().print(show)


def _cell(scores: dict[str, Any]) -> str:
    return f"{scores['f1']:.3f} ± {scores.get('f1_error', 0):.3f}" if scores else ""


def register(app: typer.Typer) -> None:
    """Add this file's command to the program."""
    app.command()(ablation)
