"""Answers with drafts and without, in turn, to questions whose references are given: `speculation` of bench-decode."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from tempfile import TemporaryDirectory
from typing import Any

from deploy.bench.answers.answering import AnswerSettings
from deploy.bench.intervals import Interval, interleave, ratio_interval
from deploy.bench.scenario import Keys, Sheet, figure, round_figure, with_intervals
from edge_client import EdgeModel, Finished, Token
from edge_client.stream import Statistics
from memory3.formats import FileDocument
from testing.programs import ROOT

DATA = ROOT / "data"
SETS = {"facts": "facts_dev.json", "notes": "everyday_dev.json", "prose": "introductions_dev.json"}
"""Question sets by kind; every question has its reference."""
DESCRIPTIONS, FREE = "descriptions", "free"
"""Longer answers about the references of `prose`, and requests that nothing is retrieved for."""
REQUESTS = "requests.jsonl"
KINDS = (*SETS, DESCRIPTIONS, FREE)


@dataclass(frozen=True)
class Asked:
    """One answer: its tokens and what it cost."""

    tokens: tuple[int, ...]
    statistics: Statistics


def measure_speculation(settings: AnswerSettings, count: int) -> Keys:
    """Keys of `count` questions of each kind; answers end by themselves or after `answer_tokens`."""
    rows = {kind: [r for r in _rows(file) if r.get("answerable", True)][:count] for kind, file in SETS.items()}
    questions = {kind: [r["question"] for r in own] for kind, own in rows.items()}
    titles = [r["title"] if "title" in r else r["knowledge"].partition("\n")[0] for r in rows["prose"]]
    questions[DESCRIPTIONS] = [f"Tell me about {title}." for title in titles]
    requests = (DATA / REQUESTS).read_text("utf-8").splitlines()[-count:]
    questions[FREE] = [json.loads(line)["request"] for line in requests]
    references = dict.fromkeys(r["knowledge"] for r in chain.from_iterable(rows.values()))
    options: dict[str, Any] = {"offline": True, "threads": settings.threads, "provider": "cpu"}
    with TemporaryDirectory() as local, EdgeModel.open(settings.bundle, local=local, **options) as model:
        if model.bundle.writer is None:
            return {"speculation": None, "speculation_missing": "the bundle has no writer.onnx"}
        for _ in model.remember_documents(_document(n, text) for n, text in enumerate(references)):
            pass
        samples = {kind: _measured(model, kind, asked, settings) for kind, asked in questions.items()}
    return speculation_keys(samples)


def speculation_keys(samples: Mapping[str, Mapping[str, Sequence[Asked]]]) -> Keys:
    """Rates with drafts over those without, question by question: of each kind, and of all with memories."""
    ratios = {kind: _ratio([own]) for kind, own in samples.items()}
    measured = {f"speculation_{kind}": ratio for kind, ratio in ratios.items() if ratio is not None}
    if (whole := _ratio([own for kind, own in samples.items() if kind != FREE])) is not None:
        measured["speculation"] = whole
    accepted, drafted, same = {}, {}, {}
    for kind, own in samples.items():
        statistics = [one.statistics for one in own["on"]]
        drafted[kind] = sum(s.drafted_tokens for s in statistics)
        accepted[kind] = sum(s.accepted_tokens for s in statistics)
        equal = [a.tokens == b.tokens for a, b in zip(own["on"], own["off"], strict=True)]
        same[kind] = round_figure(sum(equal) / len(equal))
    keys: Keys = {
        "speculation_drafted": drafted,
        "speculation_accepted": accepted,
        "speculation_same_answers": same,
        "speculation_tokens": {kind: sum(len(a.tokens) for a in own["on"]) for kind, own in samples.items()},
    }
    return with_intervals(keys, **measured)


def speculation_sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row for each kind of question; none where it was not measured."""
    if result.get("speculation") is None:
        return []
    rows = [
        (
            kind,
            figure(result, f"speculation_{kind}"),
            f"{result['speculation_accepted'][kind]} of {result['speculation_tokens'][kind]}",
            f"{result['speculation_same_answers'][kind]:.0%}",
        )
        for kind in KINDS
    ]
    rows.append(("all but free", figure(result, "speculation"), "", ""))
    note = (
        "Answers read the memories that the device retrieves of the questions' references and end by themselves; free"
        " requests read none. The ratio is the median over questions. Answers that differ do so by rounding: the int8"
        " kernels do not compute one row as they compute several."
    )
    columns = ("questions", "tokens/s with drafts / without ↑", "tokens from drafts", "same answers")
    return [Sheet("speculation: drafts from memories, prompt and answer", columns, rows, note)]


def _measured(
    model: EdgeModel, kind: str, questions: Sequence[str], settings: AnswerSettings
) -> dict[str, list[Asked]]:
    def asking(drafts: bool) -> Callable[[int], Asked]:
        return lambda number: _ask(model, questions[number], kind, drafts, settings.answer_tokens)

    variants = {"off": asking(False), "on": asking(True)}
    return interleave(variants, len(questions), warm_up=settings.warm_up, label=kind)


def _ask(model: EdgeModel, question: str, kind: str, drafts: bool, most: int) -> Asked:
    model.engine.drafts = drafts
    events = list(model.session(memory="off" if kind == FREE else "exact").send(question, max_tokens=most))
    assert isinstance(events[-1], Finished)
    return Asked(tuple(e.id for e in events if isinstance(e, Token)), events[-1].statistics)


def _ratio(samples: Sequence[Mapping[str, Sequence[Asked]]]) -> Interval | None:
    """Of all answers in which something was decoded behind the first token; None where none was."""
    on, off = ([a.statistics.tokens_per_s for own in samples for a in own[name]] for name in ("on", "off"))
    pairs = [(a, b) for a, b in zip(on, off, strict=True) if a and b]
    return ratio_interval(*zip(*pairs, strict=True)) if pairs else None


def _rows(file: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((DATA / file).read_text("utf-8"))
    return rows


def _document(number: int, text: str) -> FileDocument:
    title, _, rest = text.partition("\n")
    return FileDocument(f"reference {number}", f"reference {number}", title, rest or text, {})
