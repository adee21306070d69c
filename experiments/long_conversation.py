"""Long conversations: a fact told early, other talk of so many thousand tokens, and then a question about the fact.

Made by rule from `data/factbook.jsonl`: a user tells facts of countries, and every second one has the field that is
asked for, of another country. Held-out countries are the test, all others are for development.
"""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from edge_client.events import Result
from edge_client.generate.past import Past
from edge_client.model import EdgeModel
from memory_model.bundle import DEFAULT_FOLDER
from memory_model.chat import Message
from memory_model.cli.options import FACTBOOK, console
from memory_model.data import factbook
from memory_model.errors import InvalidInput
from memory_model.eval.scores import Mean, exact_match, token_f1

CONDITIONS = {
    "memories": "older turns as memories",
    "window": "the last turns that fit",
    "everything": "all turns as text, where they fit",
    "retrieved": "five retrieved references as text",
}
REPLIES = ("Thanks, I will remember that.", "Good to know!", "I see.", "How interesting.")
ANSWER_TOKENS = 32
_SCAFFOLDING = 8  # tokens of the chat template around a message, about


@dataclass(frozen=True)
class Row:
    """A conversation and the question at its end. distance: tokens between the fact and the question, about."""

    number: int
    distance: int
    messages: tuple[Message, ...]
    question: str
    answer: str


@dataclass(frozen=True)
class Measured:
    """One answer. resident_mb: the most that the process ever held in memory.

    first_token_ms: writing and reading included; where all turns fit, `everything` finds what `window` has read.
    """

    number: int
    distance: int
    condition: str
    said: str
    answer: str
    f1: float
    exact: float
    prompt_tokens: int
    first_token_ms: float
    tokens_per_s: float
    resident_mb: float


def rows(documents: Sequence[dict[str, str]], distance: int, count: Callable[[str], int]) -> Iterator[Row]:
    """Endless; the same for the same documents and distance. count: tokens of a text."""
    asked = [(d["title"], ways) for d in documents for ways in factbook.questions(d["title"], d["text"])]
    by_field: dict[str, list[tuple[str, str]]] = {}
    for title, ways in asked:
        by_field.setdefault(_field(ways[0].line), []).append((title, ways[0].line))
    facts = [fact for found in by_field.values() for fact in found]
    if len({title for title, _ in asked}) < 3:
        raise InvalidInput("facts of at least three countries are needed")
    number = 0
    while True:
        rng = random.Random(f"{number} {distance}")
        title, ways = rng.choice(asked)
        way, field = rng.choice(ways), _field(ways[0].line)
        alike = [fact for fact in by_field[field] if fact[0] != title]
        messages, tokens = _told(title, way.line, rng), 0
        while tokens < distance:
            about, line = rng.choice(alike if alike and len(messages) % 4 == 0 else facts)
            if (about, _field(line)) != (title, field):
                messages += (turn := _told(about, line, rng))
                tokens += sum(count(m["content"]) + _SCAFFOLDING for m in turn)
        yield Row(number, distance, tuple(messages), way.question, way.answer)
        number += 1


def answer(model: EdgeModel, row: Row, condition: str) -> Result | None:
    """The answer under a condition of CONDITIONS, or None where the text does not fit."""
    if condition == "memories":
        return model.session(messages=row.messages).send(row.question, max_tokens=ANSWER_TOKENS).result()
    question = row.question
    if condition == "retrieved":
        past = model.past()
        past.remember_turns(_turns(row.messages))
        question = "\n\n".join([*_nearest(model, past, row.question), row.question])
    asked: list[Message] = [*row.messages, {"role": "user", "content": question}]
    while len(model.bundle.chat.prompt(asked).ids) + ANSWER_TOKENS >= model.decoder.room:
        if condition == "everything":
            return None
        asked = asked[2:]
    return model.ask(asked, memory="off", max_tokens=ANSWER_TOKENS)


def long_conversation(
    bundle: Annotated[Path, typer.Option(help="An edge bundle with writer.onnx.")] = DEFAULT_FOLDER,
    out: Annotated[Path, typer.Option(help="JSON lines; what is in it is not measured again.")] = Path(
        "build/long_conversation.jsonl"
    ),
    distances: Annotated[str, typer.Option(help="Tokens between the fact and the question.")] = "1000,4000,16000",
    questions: Annotated[int, typer.Option(min=1, help="For each distance.")] = 40,
    conditions: Annotated[str, typer.Option(help="Of " + ", ".join(CONDITIONS) + ".")] = ",".join(CONDITIONS),
    context: Annotated[int, typer.Option(help="Tokens in the cache; 0: the default.")] = 0,
    test: Annotated[bool, typer.Option("--test", help="Held-out countries instead of the others.")] = False,
    data: Annotated[Path, typer.Option(help="The facts.")] = FACTBOOK,
) -> None:
    """Asks for facts that were told thousands of tokens ago: with memories, a sliding window, and as text."""
    if unknown := set(conditions.split(",")) - set(CONDITIONS):
        raise InvalidInput(f"there is no condition {', '.join(sorted(unknown))}: {', '.join(CONDITIONS)}")
    documents = [d for d in factbook.read_jsonl(data) if factbook.held_out(d["key"]) == test]
    measured = _read(out)
    done = {(m.number, m.distance, m.condition) for m in measured}
    out.parent.mkdir(parents=True, exist_ok=True)
    with EdgeModel.open(bundle, offline=True, memory="exact", context=context) as model, out.open("a") as file:
        for distance in map(int, distances.split(",")):
            made = rows(documents, distance, model.bundle.tokenizer.count)
            for _, row in zip(range(questions), made, strict=False):
                for condition in conditions.split(","):
                    if (row.number, distance, condition) in done:
                        continue
                    if (found := answer(model, row, condition)) is not None:
                        measured.append(_scored(row, condition, found))
                        file.write(json.dumps(asdict(measured[-1]), ensure_ascii=False) + "\n")
                        file.flush()
    console.print(_table(measured))


def _told(title: str, line: str, rng: random.Random) -> list[Message]:
    said = {"role": "user", "content": factbook.sentence(title, line, rng)}
    return [said, {"role": "assistant", "content": rng.choice(REPLIES)}]


def _field(line: str) -> str:
    return line.partition(": ")[0]


def _turns(messages: Sequence[Message]) -> list[tuple[int, Sequence[Message]]]:
    return [(n // 2 + 1, messages[n : n + 2]) for n in range(0, len(messages), 2)]


def _nearest(model: EdgeModel, past: Past, question: str) -> list[str]:
    assert model.recaller is not None
    found = model.recaller.recall([question], also=past.base)[0]
    return [m.text for m in found.read if m.text]


def _scored(row: Row, condition: str, found: Result) -> Measured:
    s = found.statistics
    resident_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(
        row.number, row.distance, condition, found.text, row.answer, token_f1(found.text, row.answer),
        exact_match(found.text, row.answer), s.prompt_tokens, s.first_token_ms, s.tokens_per_s, resident_mb,
    )  # fmt: skip


def _read(path: Path) -> list[Measured]:
    """What was measured before; a last line that was cut is left out."""
    if not path.is_file():
        return []
    *whole, rest = path.read_text(encoding="utf-8").split("\n")
    if rest:
        path.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
    return [Measured(**json.loads(line)) for line in whole]


def _table(measured: Sequence[Measured]) -> Table:
    table = Table(
        "tokens between", *CONDITIONS, title="F1 (standard error), answers; none: not measured, or it does not fit"
    )
    for distance in sorted({m.distance for m in measured}):
        cells = []
        for condition in CONDITIONS:
            scores = [m.f1 for m in measured if (m.distance, m.condition) == (distance, condition)]
            mean = Mean.of(scores) if scores else None
            cells.append(f"{mean.mean:.2f} ({mean.error:.2f}), {mean.n}" if mean else "none")
        table.add_row(f"{distance:,}", *cells)
    return table
