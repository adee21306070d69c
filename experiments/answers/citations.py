"""Whether the memory that an answer attended to most is the one that it was read from.

Every question of a file is answered by a bundle's decoder with five given memories, which the bundle's writer wrote,
the right one among them. Compared are the memory with the largest share of attention, those that the spans name, and
the one without which the answer is least likely.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from edge_client.decoder.batching import BatchingDecoder
from edge_client.engine import Engine
from edge_client.local.writer import MemoryWriter
from edge_client.model import EdgeModel
from edge_client.recall.embedding import QueryEmbedder
from edge_client.recall.outcome import MemoryRead, Recall
from edge_client.recall.policy import RecallMode
from edge_client.recall.recaller import Recaller
from edge_client.settings import EdgeSettings
from edge_client.stream import Result
from memory3.files.bundle import DEFAULT_FOLDER, Bundle
from memory_model.data.rows import QuestionRow, open_rows
from memory_model.eval.conditions import given_references
from memory_model.eval.scores import Mean, contained
from memory_model.terminal import console, progress_bar, write_json

AT_ONCE = 64
"""References that are written in one call."""


class FiveGiven(Recaller):
    """Gives every chunk the references of the current question, and says which they are. references: their texts."""

    references: Sequence[str] = ()

    def __init__(self, bundle: Bundle, texts: Sequence[str]) -> None:
        """texts: all references of the run, which are written here."""
        super().__init__(QueryEmbedder(bundle.embedder()), None, bundle.memory_format)
        self._payloads: dict[str, bytes] = {}
        writer, distinct = MemoryWriter(bundle), list(dict.fromkeys(texts))
        with progress_bar("writing memories", len(distinct)) as advance:
            for start in range(0, len(distinct), AT_ONCE):
                part = distinct[start : start + AT_ONCE]
                payloads = bundle.memory_format.encode(writer.memories(part))
                self._payloads |= dict(zip(part, payloads, strict=True))
                advance(len(part))

    def recall(self, queries: Sequence[str], **_: object) -> list[Recall]:
        """The same memories for every query."""
        memories = tuple(self.memory_format.decode([self._payloads[text] for text in self.references]))
        read = tuple(MemoryRead(n, f"reference {n}", "", 1, 1.0, text) for n, text in enumerate(self.references))
        return [Recall(query, memories, read) for query in queries]


@dataclass(frozen=True)
class Cited:
    """One answered question. shares, nats: of its references, in their order; right: numbers of those that answer it.

    answered: whether the answer has the words of a right one. spans: (text, number of its reference, score, passage).
    """

    question: str
    right_answer: str
    answer: str
    answered: bool
    refused: bool
    right: tuple[int, ...]
    shares: tuple[float, ...]
    nats: tuple[float, ...]
    spans: tuple[tuple[str, int, float, str], ...]

    @classmethod
    def of(cls, row: QuestionRow, references: Sequence[str], own: Sequence[str], result: Result) -> Cited:
        """own: the references of the row's knowledge."""
        shares = np.zeros(len(references))
        if result.attention is not None and result.attention.memories:
            numbers = [memory.memory_id for memory in result.attention.memories]
            tokens = result.attention.shares[: -1 if result.reason == "end" else None]
            shares[numbers] = tokens.mean(axis=0) if len(tokens) else 0
        nats = {c.memory.memory_id: c.nats for c in result.contributions}
        spans = []
        for one in result.spans:
            passage = slice(*one.passage) if one.passage else slice(0)
            number = one.memory.memory_id
            spans.append((result.text[one.start : one.end], number, one.score, references[number][passage]))
        return cls(
            row.question,
            row.right_answer,
            result.text,
            any(contained(result.text, right) for right in row.right_answers),
            result.refused,
            tuple(n for n, text in enumerate(references) if text in own),
            tuple(shares.tolist()),
            tuple(nats.get(n, 0.0) for n in range(len(references))) if nats else (),
            tuple(spans),
        )

    @property
    def attended(self) -> int:
        """The reference with the largest share of attention."""
        return max(range(len(self.shares)), key=self.shares.__getitem__)

    @property
    def needed(self) -> int:
        """The reference without which the answer is least likely."""
        return max(range(len(self.nats)), key=self.nats.__getitem__)

    def scores(self, row: QuestionRow) -> dict[str, float]:
        """By name what applies to it: numbers from 0 to 1."""
        found = {"attended_right": float(self.attended in self.right)}
        if self.nats:
            found["needed_right"] = float(self.needed in self.right)
            found["agreement"] = float(self.attended == self.needed)
        cited = sum(len(text) for text, *_ in self.spans)
        found["cited_text"] = min(cited / max(len(self.answer.strip()), 1), 1.0)
        if self.spans:
            rightly = [(text, passage) for text, number, _, passage in self.spans if number in self.right]
            found["spans_right"] = sum(len(text) for text, _ in rightly) / cited
            if rightly and self.answered:
                holds = [any(contained(passage, right) for right in row.right_answers) for _, passage in rightly]
                found["passage_right"] = float(any(holds))
        return found


def citations(
    data: Annotated[Path, typer.Argument(help="Questions: a JSON list of {knowledge, question, right_answer, …}.")],
    bundle: Annotated[Path, typer.Option(help="Edge bundle, with writer.onnx.")] = DEFAULT_FOLDER,
    out: Annotated[Path, typer.Option(help="JSON to write: means, and every answer.")] = Path("build/citations.json"),
    limit: Annotated[int | None, typer.Option(min=2, help="Number of questions.")] = None,
    explain: Annotated[bool, typer.Option(help="Also leave each memory out.")] = True,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 48,
    provider: Annotated[str, typer.Option(help="What runs the decoder.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Of the decoder.")] = 1,
) -> None:
    """Measure how often the best-attended of five memories is the right one, and agrees with leaving it out."""
    opened = Bundle.open(bundle)
    rows = [row for row in open_rows(data, limit) if row.answerable]
    memory, count = opened.config.memory, opened.tokenizer.count
    own, given = given_references(rows, count, memory.reference_tokens, memory.memories_per_chunk, 4, random.Random(0))
    recaller = FiveGiven(opened, [text for texts in given for text in texts])
    decoder = BatchingDecoder.open(opened, provider=provider, threads=threads)
    model = EdgeModel(
        Engine(opened, decoder, recaller, EdgeSettings(memory=RecallMode.exact, local=out.parent / "none"))
    )
    found: list[Cited] = []
    with model, progress_bar("questions", len(rows)) as advance:
        for row, texts, references in zip(rows, own, given, strict=True):
            recaller.references = references
            answer = model.session().send(row.question, max_tokens=max_tokens, citations=True, explain=explain)
            found.append(Cited.of(row, references, texts, answer.result()))
            advance(1)
    scores = summary(found, rows)
    write_json(
        out, {"data": str(data), "model_id": opened.manifest.model_id, "scores": scores, "rows": [*map(asdict, found)]}
    )
    show(scores, opened.manifest.name, data)
    console.print(f"written to [bold]{out}[/bold]")


def summary(found: Sequence[Cited], rows: Sequence[QuestionRow]) -> dict[str, dict[str, Any]]:
    """Means by kind of answer and score: of all that are no refusals, and of those that have the right answer."""
    kinds = {"answers": [not one.refused for one in found], "right answers": [one.answered for one in found]}
    result: dict[str, dict[str, Any]] = {}
    for kind, chosen in kinds.items():
        each = [one.scores(row) for one, row, counts in zip(found, rows, chosen, strict=True) if counts]
        names = dict.fromkeys(name for scores in each for name in scores)
        result[kind] = {name: asdict(Mean.of([s[name] for s in each if name in s])) for name in names}
    return result


def show(scores: dict[str, dict[str, Any]], name: str, data: Path) -> None:
    """Print the means by kind of answer."""
    table = Table("score", *scores, title=f"{name}, {data.name}; ±: standard error")
    for score in dict.fromkeys(score for kind in scores.values() for score in kind):
        means = [kind.get(score) for kind in scores.values()]
        table.add_row(score, *(f"{m['mean']:.3f} ± {m['error']:.3f} of {m['n']}" if m else "" for m in means))
    console.print(table)
