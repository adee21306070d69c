"""Whether follow-up questions are answered as well as the same questions asked in full.

A device remembers all texts of a file. Each row is asked in full in a conversation of its own, and as the last question
of a conversation whose earlier questions name what it is about. Everything is searched, read and answered as a device
does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.table import Table

from edge_client.model import EdgeModel
from edge_client.stream import Result
from memory3.errors import InvalidInput
from memory3.files.bundle import DEFAULT_FOLDER
from memory_model.data.rows import QuestionRow, read_rows
from memory_model.eval.scores import Mean, contained
from memory_model.models.tensor_files import read_json
from memory_model.terminal import console, progress_bar, write_json

_ADVICE = "conversations are a JSON list of {before, question, in_full, knowledge, right_answer}"


@dataclass(frozen=True)
class Turns:
    """before: earlier questions, which name the subject. in_full: the last question with its subject."""

    before: tuple[str, ...]
    in_full: str


@dataclass(frozen=True)
class Reply:
    """What was said. right_read: whether a memory of the row's text was among those that were read."""

    answer: str
    right: bool
    refused: bool
    right_read: bool


@dataclass(frozen=True)
class Answered:
    """The last question of a conversation, answered there and asked in full."""

    before: tuple[str, ...]
    question: str
    in_full: str
    right_answer: str
    follow_up: Reply
    full: Reply


def conversations(
    data: Annotated[Path, typer.Argument(help="Conversations, as data/follow_ups_dev.json has them.")],
    bundle: Annotated[Path, typer.Option(help="Edge bundle, with writer.onnx.")] = DEFAULT_FOLDER,
    out: Annotated[Path, typer.Option(help="JSON to write: every answer.")] = Path("build/conversations.json"),
    limit: Annotated[int | None, typer.Option(min=1, help="Number of conversations.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 48,
    provider: Annotated[str, typer.Option(help="What runs the decoder.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Of the decoder.")] = 1,
) -> None:
    """Compare answers to follow-ups with those to the same questions in full, on a device that holds all texts."""
    rows = open_conversations(data)
    found: list[Answered] = []
    with (
        tempfile.TemporaryDirectory() as local,
        EdgeModel.open(bundle, offline=True, local=Path(local), provider=provider, threads=threads) as model,
    ):
        keys = remember(model, [row for row, _ in rows])
        with progress_bar("conversations", len(rows[:limit])) as advance:
            for row, turns in rows[:limit]:
                found.append(answered(model, row, turns, keys[row.knowledge], max_tokens))
                advance()
        name, model_id = model.bundle.manifest.name, model.bundle.manifest.model_id
    write_json(out, {"data": str(data), "model_id": model_id, "rows": [asdict(one) for one in found]})
    show(found, name, data)
    console.print(f"written to [bold]{out}[/bold]")


def open_conversations(path: Path) -> list[tuple[QuestionRow, Turns]]:
    """Rows of a file; raises MissingFile, CorruptFile, InvalidInput."""
    data = read_json(path, list, _ADVICE)
    rows = read_rows(data, name=str(path))
    try:
        return list(zip(rows, TypeAdapter(list[Turns]).validate_python(data), strict=True))
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise InvalidInput(f"{path}, row {int(wrong['loc'][0]) + 1}: {wrong['msg']}: {_ADVICE}") from error


def remember(model: EdgeModel, rows: Sequence[QuestionRow]) -> dict[str, str]:
    """Write each text of the rows once, whose first line is its title; returns their keys by text."""
    keys = {text: str(number) for number, text in enumerate(dict.fromkeys(row.knowledge for row in rows))}
    with progress_bar("writing memories", len(keys)) as advance:
        for text, key in keys.items():
            title, _, body = text.partition("\n")
            model.remember(body, key=key, title=title)
            advance()
    return keys


def answered(model: EdgeModel, row: QuestionRow, turns: Turns, key: str, max_tokens: int) -> Answered:
    """Both ways of asking, each in a conversation of its own. key: of the document that answers."""
    session = model.session()
    for question in turns.before:
        session.send(question, max_tokens=max_tokens).result()
    follow_up = session.send(row.question, max_tokens=max_tokens).result()
    full = model.session().send(turns.in_full, max_tokens=max_tokens).result()
    replies = (_reply(result, row, key) for result in (follow_up, full))
    return Answered(turns.before, row.question, turns.in_full, row.right_answer, *replies)


def _reply(result: Result, row: QuestionRow, key: str) -> Reply:
    right = any(contained(result.text, answer) for answer in row.right_answers)
    read = any(memory.document_key == key for memory in result.memories)
    return Reply(result.text, right, result.refused, read)


def show(found: Sequence[Answered], name: str, data: Path) -> None:
    """Print the shares of both ways, and of the follow-ups whose question in full is answered rightly."""
    table = Table("asked", "right", "refused", "right text read", title=f"{name}, {data.name}; ±: standard error")
    for way, replies in (
        ("in full", [one.full for one in found]),
        ("as a follow-up", [one.follow_up for one in found]),
    ):
        table.add_row(
            way,
            _share([one.right for one in replies]),
            _share([one.refused for one in replies]),
            _share([one.right_read for one in replies]),
        )
    console.print(table)
    both = [one.follow_up.right for one in found if one.full.right]
    console.print(f"follow-ups that are right, of those right in full: {_share(both)}")


def _share(values: Sequence[bool]) -> str:
    if not values:
        return "none"
    mean = Mean.of([float(value) for value in values])
    return f"{mean.mean:.3f} ± {mean.error:.3f} of {mean.n}"
