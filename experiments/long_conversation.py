"""Long conversations: facts early, then thousands of tokens about other things, then questions about the facts.

Made by rule. A user tells facts of `data/factbook.jsonl` and passages with questions; half of the talk after
them is passages of other subjects, a quarter facts of a requested field, of another country. The same early
facts are queried at every distance, while one conversation grows. Test: held-out countries and
`data/introductions_test.json`; development: countries of tuning and `data/introductions_dev.json`.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from edge_client.model import EdgeModel
from edge_client.recall.outcome import Recall
from edge_client.session import ChatSession
from edge_client.stream import Result
from memory3.errors import InvalidInput
from memory3.files.bundle import DEFAULT_FOLDER, Bundle
from memory3.text.chat import Message
from memory_model.data import factbook
from memory_model.data.factbook import FACTBOOK
from memory_model.eval.scores import Mean, exact_match, token_f1
from memory_model.models.tensor_files import read_json
from memory_model.terminal import console

CONDITIONS = {
    "memories": "older turns as memories",
    "window": "the last turns that fit",
    "everything": "all turns as text, where they fit",
    "retrieved": "what the memories are of, as text",
}
REPLIES = ("Thanks, I will remember that.", "Good to know!", "I see.", "How interesting.")
FACTS, PASSAGES = 5, 3
"""Facts and passages of a conversation that questions are about."""
ANSWER_TOKENS = 32
WHOLE_CONTEXT = 8192
"""Tokens in the cache for `everything`: what the base model was trained for."""
_ROOM = 128  # tokens of a question and its answer, with the template's
_SCAFFOLDING = 8  # tokens of the chat template around a message, about


@dataclass(frozen=True)
class EarlyQuestion:
    """A question about the content of a turn, from 1. kind: fact or passage."""

    kind: str
    turn: int
    question: str
    answer: str


@dataclass(frozen=True)
class Talk:
    """A conversation. ends: by a distance in tokens, how many messages are between questions and facts."""

    messages: list[Message]
    questions: list[EarlyQuestion]
    ends: dict[int, int]


@dataclass(frozen=True)
class MeasuredAnswer:
    """One answer. found: whether what answers was in the cache or among the memories that the answer read."""

    conversation: int
    distance: int
    condition: str
    kind: str
    turn: int
    response: str
    answer: str
    f1: float
    exact: float
    refused: bool
    found: bool


class Sources:
    """What conversations are made of, of the files in a folder. Raises InvalidInput where there is too little."""

    def __init__(self, data: Path, *, test: bool) -> None:
        documents = [d for d in factbook.read_jsonl(data / "factbook.jsonl") if factbook.held_out(d["key"]) == test]
        self.facts = [(d["title"], ways) for d in documents for ways in factbook.questions(d["title"], d["text"])]
        if len({title for title, _ in self.facts}) < FACTS:
            raise InvalidInput(f"facts of at least {FACTS} countries are needed")
        rows = read_json(data / f"introductions_{'test' if test else 'dev'}.json", list)
        self.passages = [
            {**row, "knowledge": row["knowledge"].removeprefix(row["title"]).strip()}
            for row in rows
            if row["knowledge"].startswith(f"{row['title']}\n")
        ]
        self.others = factbook.read_jsonl(data / "introductions_documents.jsonl", ("title", "text"))

    def talk(self, number: int, distances: Iterable[int], count: Callable[[str], int]) -> Talk:
        """The same for the same number. count: tokens of a text."""
        rng, messages, questions = random.Random(number), list[Message](), list[EarlyQuestion]()
        by_title = {title: (title, ways) for title, ways in rng.sample(self.facts, len(self.facts))}
        facts = rng.sample(list(by_title.values()), FACTS)
        passages = list({r["title"]: r for r in rng.sample(self.passages, len(self.passages))}.values())[:PASSAGES]
        for title, ways in facts:
            way = rng.choice(ways)
            messages += _turn(factbook.sentence(title, way.line, rng), rng)
            questions.append(EarlyQuestion("fact", len(messages) // 2, way.question, way.answer))
        for row in passages:
            messages += _turn(_passage(row["title"], row["knowledge"]), rng)
            questions.append(EarlyQuestion("passage", len(messages) // 2, row["question"], row["right_answer"]))
        taken = {(title, ways[0].field) for title, ways in facts}
        free = [(title, ways[0]) for title, ways in self.facts if (title, ways[0].field) not in taken]
        alike = [(title, question) for title, question in free if question.field in {field for _, field in taken}]
        titles = {row["title"] for row in passages}
        others = [_passage(o["title"], o["text"]) for o in self.others if o["title"] not in titles]
        ends, tokens = dict[int, int](), 0
        for distance in sorted(distances):
            while tokens < distance:
                title, question = rng.choice(alike if len(messages) % 8 == 0 else free)
                message = rng.choice(others) if len(messages) % 4 else factbook.sentence(title, question.line, rng)
                messages += (turn := _turn(message, rng))
                tokens += sum(count(m["content"]) + _SCAFFOLDING for m in turn)
            ends[distance] = len(messages)
        return Talk(messages, questions, ends)


def long_conversation(
    bundle: Annotated[Path, typer.Option(help="Bundle with writer.onnx.")] = DEFAULT_FOLDER,
    out: Annotated[Path, typer.Option(help="JSON lines; resumes a run.")] = Path("build/long_conversation.jsonl"),
    distances: Annotated[str, typer.Option(help="Tokens between facts and questions.")] = "1000,4000,16000",
    conversations: Annotated[str, typer.Option(help="Numbers of conversations of eight questions.")] = "0,1,2",
    context: Annotated[int, typer.Option(help="Tokens in the cache; 0: the default.")] = 0,
    test: Annotated[bool, typer.Option("--test", help="Use the test questions, not the development ones.")] = False,
    plot: Annotated[Path | None, typer.Option(help="SVG to plot F1 by distance to.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of factbook.jsonl and introductions_*.")] = FACTBOOK.parent,
) -> None:
    """Question facts of thousands of tokens ago, with memories, with a sliding window, and as text."""
    far, sources = numbers(distances), Sources(data, test=test)
    measured = _read(out)
    done = {(m.conversation, m.distance, m.turn) for m in measured}
    out.parent.mkdir(parents=True, exist_ok=True)
    with _opened(bundle, context) as model, _opened(bundle, WHOLE_CONTEXT) as whole, out.open("a") as file:
        for number in numbers(conversations):
            talk, saved = sources.talk(number, far, model.bundle.tokenizer.count), out.with_suffix(f".{number}.m3chat")
            session = model.load_session(saved) if saved.is_file() else model.session()
            for distance in far:
                waiting = [question for question in talk.questions if (number, distance, question.turn) not in done]
                if waiting:  # the talk up to there, as if it had been typed and answered
                    held = session.conversation.messages
                    held += talk.messages[len(held) : talk.ends[distance]]
                for question in waiting:
                    for condition, (found, has) in answers(model, whole, session, question).items():
                        f1, exact = token_f1(found.text, question.answer), exact_match(found.text, question.answer)
                        row = MeasuredAnswer(
                            number,
                            distance,
                            condition,
                            question.kind,
                            question.turn,
                            found.text,
                            question.answer,
                            f1,
                            exact,
                            found.refused,
                            has,
                        )
                        measured.append(row)
                        file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
                    file.flush()
                    if question == waiting[0]:
                        session.save(saved)  # with the memories that this answer waited for
                console.print(_table(measured))
    if plot is not None:
        _draw(measured, plot)


def numbers(text: str) -> list[int]:
    """`1000,4000` in ascending order; raises InvalidInput."""
    try:
        return sorted(map(int, text.split(",")))
    except ValueError as error:
        raise InvalidInput(f"{text!r} is no list of numbers: write 1000,4000") from error


def answers(
    model: EdgeModel, whole: EdgeModel, session: ChatSession, question: EarlyQuestion
) -> dict[str, tuple[Result, bool]]:
    """By condition the answer, and whether it read the fact. whole: with a cache for `everything`."""
    turn, messages, recent = 2 * question.turn, session.messages, _recent(model, session.messages)
    with recording(model) as recalls:
        remembered = session.send(question.question, max_tokens=ANSWER_TOKENS).result()
    held = session.conversation.sequence.memories  # where turns left, the background read them and the question
    session.take_back()
    left = session.conversation.left
    if failed := [r.recall.error for r in remembered.recalls if r.state == "failed"]:
        raise InvalidInput(f"the conversation's memories were not read: {failed[0]}")
    read = next((recall.read for recall in reversed(recalls) if same(recall.memories, held)), ())
    has = turn > left or f"turn {question.turn}" in {m.title for m in read}
    before = "\n\n".join(m.text for m in read if m.text)

    def text(reader: EdgeModel, turns: Sequence[Message], references: str = "") -> Result:
        prompt = f"{references}\n\n{question.question}" if references else question.question
        return reader.ask([*turns, {"role": "user", "content": prompt}], memory="off", max_tokens=ANSWER_TOKENS)

    window = text(model, recent)
    found = {
        "memories": (remembered, has),
        "window": (window, turn > len(messages) - len(recent)),
        "retrieved": (text(model, messages[left:], before), has),
    }
    if len(recent) == len(messages):
        found["everything"] = (window, True)
    elif _tokens(whole, messages) + _ROOM < whole.engine.decoder.room:
        found["everything"] = (text(whole, messages), True)
    return found


@contextmanager
def recording(model: EdgeModel) -> Iterator[deque[Recall]]:
    """The last recalls within the block, of the background too, the latest at the end."""
    recaller, recalls = model.engine.recaller, deque[Recall](maxlen=64)
    recall = recaller.recall

    def recorded(queries: Sequence[str], **options: Any) -> list[Recall]:
        found = recall(queries, **options)
        recalls.extend(found)
        return found

    recaller.recall = recorded  # type: ignore[method-assign]
    try:
        yield recalls
    finally:
        recaller.recall = recall  # type: ignore[method-assign]


def same(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether both hold the same objects, at least one."""
    return bool(one) and [*map(id, one)] == [*map(id, other)]


def _opened(bundle: Path, context: int) -> EdgeModel:
    trained = Bundle.open(bundle).config.positions
    tokens = min(context, trained or context)
    return EdgeModel.open(
        bundle, offline=True, memory="exact", context=tokens, deadline_s=600, local=Path("build/none")
    )


def _recent(model: EdgeModel, messages: list[Message]) -> list[Message]:
    """The last turns that fit, with room for any question."""
    start = len(messages)
    while start and _tokens(model, messages[start - 2 :]) + _ROOM < model.engine.decoder.room:
        start -= 2
    return messages[start:]


def _tokens(model: EdgeModel, messages: Sequence[Message]) -> int:
    return len(model.bundle.chat.prompt(messages).ids)


def _turn(message: str, rng: random.Random) -> list[Message]:
    return [{"role": "user", "content": message}, {"role": "assistant", "content": rng.choice(REPLIES)}]


def _passage(title: str, text: str) -> str:
    return f"I read about {title}: {text}"


def _read(path: Path) -> list[MeasuredAnswer]:
    """What was measured before; a last line that was cut is left out."""
    if not path.is_file():
        return []
    *lines, rest = path.read_text(encoding="utf-8").split("\n")
    if rest:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [MeasuredAnswer(**json.loads(line)) for line in lines]


def _table(measured: Sequence[MeasuredAnswer]) -> Table:
    table = Table("tokens between", "questions", *CONDITIONS, "found", title="F1 (standard error); -: does not fit")
    for distance, kind in product(sorted({m.distance for m in measured}), ("fact", "passage", "")):
        rows = [m for m in measured if m.distance == distance and kind in ("", m.kind)]
        cells = []
        for condition in CONDITIONS:
            scores = [m.f1 for m in rows if m.condition == condition]
            mean = Mean.of(scores) if scores else None
            cells.append(f"{mean.mean:.2f} ({mean.error:.2f}), {mean.n}" if mean else "-")
        has = [m.found for m in rows if m.condition == "memories"]
        table.add_row(f"{distance:,}", kind or "all", *cells, f"{sum(has)}/{len(has)}")
    return table


def _draw(measured: Sequence[MeasuredAnswer], path: Path) -> None:
    """F1 by distance with standard errors, a line for each condition."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4))
    for condition, what in CONDITIONS.items():
        means: dict[int, Mean] = {}
        for distance in sorted({m.distance for m in measured}):
            scores = [m.f1 for m in measured if (m.distance, m.condition) == (distance, condition)]
            means |= {distance: Mean.of(scores)} if scores else {}
        errors = [m.error for m in means.values()]
        axes.errorbar([*means], [m.mean for m in means.values()], errors, marker="o", label=f"{condition}: {what}")
    axes.set(xscale="log", xlabel="tokens between the fact and the question", ylabel="F1", ylim=(0, 1))
    axes.legend()
    figure.savefig(path)
