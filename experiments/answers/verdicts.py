"""Whether the verdict of an answer is true: rows that what is read answers, rows that it does not, and requests.

Every question is answered by a bundle's decoder with five given memories. What the verdict should be follows from the
row: `grounded` where one of the five answers, `not_in_what_was_read` where none does, and `from_the_model` for requests
that need no knowledge ("Write a poem") and read five memories about something else.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from edge_client.decoder.batching import BatchingDecoder
from edge_client.engine import Engine
from edge_client.generate.verdict import attention_share
from edge_client.model import EdgeModel
from edge_client.recall.policy import RecallMode
from edge_client.settings import EdgeSettings
from experiments.answers.citations import FiveGiven
from memory3.files.bundle import DEFAULT_FOLDER, Bundle
from memory3.text.verdict import Grounding, Verdict, words_found
from memory_model.data.rows import QuestionRow, open_rows
from memory_model.eval.conditions import given_references
from memory_model.eval.scores import contained
from memory_model.terminal import console, progress_bar, write_json

T = TypeVar("T")
WORDS = tuple(round(0.05 * n, 2) for n in range(1, 21))
"""Thresholds that are compared."""


@dataclass(frozen=True)
class Judged:
    """One answered question. expected: the verdict that the row calls for; words, share: see `Grounding`.

    right: whether the answer has the words of a right one; None for a request.
    """

    question: str
    answer: str
    expected: str
    verdict: str | None
    words: float | None
    share: float | None
    right: bool | None


def verdicts(
    data: Annotated[list[Path], typer.Argument(help="Questions: JSON lists, as `citations` takes them.")],
    bundle: Annotated[Path, typer.Option(help="Edge bundle, with writer.onnx.")] = DEFAULT_FOLDER,
    requests: Annotated[Path, typer.Option(help="Requests that need no knowledge.")] = Path("data/requests.jsonl"),
    out: Annotated[Path, typer.Option(help="JSON to write: every answer.")] = Path("build/verdicts.json"),
    limit: Annotated[int | None, typer.Option(min=2, help="Rows of each file, and requests.")] = None,
    citations: Annotated[bool, typer.Option(help="Record attention as well.")] = True,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 48,
    provider: Annotated[str, typer.Option(help="What runs the decoder.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Of the decoder.")] = 1,
) -> None:
    """Compare the verdicts of answers with what they should be, and thresholds with each other."""
    opened, drawing = Bundle.open(bundle), random.Random(0)
    rows = [row for path in data for row in _drawn(open_rows(path), limit, drawing)]
    memory, count = opened.config.memory, opened.tokenizer.count
    _, given = given_references(rows, count, memory.reference_tokens, memory.memories_per_chunk, 4, drawing)
    every = sorted({text for texts in given for text in texts})
    asked: list[tuple[str, str, list[str], QuestionRow | None]] = [
        (row.question, Verdict.grounded if row.answerable else Verdict.not_in_what_was_read, texts, row)
        for row, texts in zip(rows, given, strict=True)
    ]
    known = [json.loads(line)["request"] for line in requests.read_text(encoding="utf-8").splitlines()]
    for request in _drawn(known, limit or len(known), drawing):
        asked.append((request, Verdict.from_the_model, drawing.sample(every, memory.memories_per_chunk), None))
    recaller = FiveGiven(opened, every)
    decoder = BatchingDecoder.open(opened, provider=provider, threads=threads)
    settings = EdgeSettings(memory=RecallMode.exact, local=out.parent / "none")
    found: list[Judged] = []
    with EdgeModel(Engine(opened, decoder, recaller, settings)) as model, progress_bar("questions", len(asked)) as done:
        for question, expected, texts, row in asked:
            recaller.references = texts
            result = model.session().send(question, max_tokens=max_tokens, citations=citations).result()
            right = None if row is None else any(contained(result.text, answer) for answer in row.right_answers)
            words, share = words_found(result.text, question, texts), attention_share(result.attention)
            found.append(Judged(question, result.text, expected, result.verdict, words, share, right))
            done(1)
    write_json(out, {"model_id": opened.manifest.model_id, "rows": [asdict(one) for one in found]})
    show(found, opened.manifest.name)
    compare(found, opened.manifest.grounding)
    console.print(f"written to [bold]{out}[/bold]")


def _drawn(values: Sequence[T], limit: int | None, drawing: random.Random) -> list[T]:
    return drawing.sample(list(values), min(limit, len(values))) if limit else list(values)


def show(found: Sequence[Judged], name: str) -> None:
    """The confusion matrix, and how many of the answers in each of its fields are right."""
    names = [verdict.value.replace("_", " ") for verdict in Verdict]
    table = Table("expected", *names, title=f"{name}: verdicts; in brackets: the right answers among them")
    for expected in dict.fromkeys(one.expected for one in found):
        rows = [one for one in found if one.expected == expected]
        counts = Counter(one.verdict for one in rows)
        right = Counter(one.verdict for one in rows if one.right)
        cells = [f"{counts[v]} ({right[v]})" if right[v] else f"{counts[v]}" for v in Verdict]
        table.add_row(Verdict(expected).value.replace("_", " "), *cells)
    console.print(table)


def compare(found: Sequence[Judged], chosen: Grounding) -> None:
    """How well thresholds of the words tell the right answers to rows from what the model says to requests."""
    said = [one for one in found if one.words is not None and one.verdict in (Verdict.grounded, Verdict.from_the_model)]
    own = [one.words for one in said if one.expected == Verdict.from_the_model]
    read = [one.words for one in said if one.expected == Verdict.grounded and one.right]
    table = Table("words", "right answers that count as read", "answers to requests that do")
    for least in WORDS:
        mark = " <" if least == chosen.words else ""
        shares = [sum(words is not None and words >= least for words in of) / max(len(of), 1) for of in (read, own)]
        table.add_row(f"{least:.2f}{mark}", *(f"{share:.2f}" for share in shares))
    console.print(table)
