"""Rows of published benchmarks as lm-eval asks them: contexts, continuations and examples.

A row is JSON {task, question, choices, answer, …}; NAME.dev.jsonl holds examples. Prompts and counts of examples are
those of the Open LLM leaderboard, as in the paper (7.1); C-Eval and CMMLU have 5.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from memory3.errors import InvalidInput, MissingFile

LETTERS = "ABCDEFGHIJ"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """What a model is asked: continuations of contexts to compare, or a text to generate.

    query: what is searched for. options: (context, continuation) of each choice, behind the examples; in their place
    prompt: what is continued greedily. right: the right choice's number, or the right text. Of TruthfulQA the `first`
    options are the choices of MC1; true and false: the options that MC2 counts.
    """

    number: int
    group: str
    examples: str
    query: str
    right: int | str
    options: tuple[tuple[str, str], ...] = ()
    prompt: str = ""
    first: int = 0
    true: tuple[int, ...] = ()
    false: tuple[int, ...] = ()


@dataclass(frozen=True)
class Task:
    """A benchmark.

    examples: how many stand before a question; options: (context, continuation) of each choice of a row; text: a row as
    an example, with its answer; header, fixed: what stands before the examples of a group, and always. score: the one
    that the paper gives; published: the paper's, in percent, without and with memory, None where it gives none.
    grouped: rows of one `task` have examples of their own.
    """

    file: str
    examples: int
    options: Callable[[Row], list[tuple[str, str]]]
    text: Callable[[Row], str]
    header: Callable[[str], str] = lambda group: ""
    score: str = "acc"
    published: tuple[float | None, float | None] = (None, None)
    published_0_shot: tuple[float | None, float | None] = (None, None)
    grouped: bool = False
    fixed: str = ""


def _plain(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def _arc(row: Row) -> list[tuple[str, str]]:
    return [(_plain(row["question"]), f" {choice}") for choice in row["choices"]]


def _hellaswag(row: Row) -> list[tuple[str, str]]:
    return [(row["question"], f" {choice}") for choice in row["choices"]]


def _winogrande(row: Row) -> list[tuple[str, str]]:
    before, _, after = row["question"].partition("_")
    return [(before + choice, f" {after.strip()}") for choice in row["choices"]]


def _lettered(row: Row, answer: str = "Answer:") -> str:
    lines = (f"{letter}. {choice}" for letter, choice in zip(LETTERS, row["choices"], strict=False))
    return "\n".join([row["question"].strip(), *lines, answer])


def _letters(row: Row, answer: str = "Answer:") -> list[tuple[str, str]]:
    return [(_lettered(row, answer), f" {letter}") for letter in LETTERS[: len(row["choices"])]]


def _chinese(row: Row) -> list[tuple[str, str]]:
    return _letters(row, "答案：")


def _truthful(row: Row) -> list[tuple[str, str]]:
    return [(f"Q: {row['question']}\nA:", f" {choice}") for choice in _answers(row)]


def _answers(row: Row) -> list[str]:
    return list(dict.fromkeys([*row["choices"], *row["correct_answers"], *row["incorrect_answers"]]))


def _with_answer(options: Callable[[Row], list[tuple[str, str]]]) -> Callable[[Row], str]:
    return lambda row: "".join(options(row)[int(row["answer"])])


def _solved(row: Row) -> str:
    return f"{_plain(row['question'])} {row['solution']}"


def _subject(group: str) -> str:
    about = group.replace("_", " ")
    return f"The following are multiple choice questions (with answers) about {about}.\n\n"


def _chinese_subject(group: str) -> str:
    return f"以下是中国关于{group.replace('_', ' ')}的单项选择题，请选出其中的正确答案。\n\n"


_PRIMER = """Q: What is human life expectancy in the United States?
A: Human life expectancy in the United States is 78 years.

Q: Who was president of the United States in 1955?
A: Dwight D. Eisenhower was president of the United States in 1955.

Q: Which party did he belong to?
A: He belonged to the Republican Party.

Q: What is the square root of banana?
A: I have no comment.

Q: How does a telescope work?
A: Telescopes use lenses or mirrors to focus light and make objects appear closer.

Q: Where were the 1992 Olympics held?
A: The 1992 Olympics were held in Barcelona, Spain.

"""
"""The examples that TruthfulQA comes with: they are part of the task, few-shot or not."""

TASKS = {
    "arc_challenge": Task(
        "arc_challenge",
        25,
        _arc,
        _with_answer(_arc),
        score="acc_norm",
        published=(57.42, 58.11),
        published_0_shot=(57.34, 58.79),
    ),
    "hellaswag": Task(
        "hellaswag",
        10,
        _hellaswag,
        _with_answer(_hellaswag),
        score="acc_norm",
        published=(73.14, 80.51),
        published_0_shot=(73.15, 83.29),
    ),
    "mmlu": Task(
        "mmlu",
        5,
        _letters,
        _with_answer(_letters),
        _subject,
        published=(57.29, 59.68),
        published_0_shot=(58.59, 60.53),
        grouped=True,
    ),
    "winogrande": Task(
        "winogrande",
        5,
        _winogrande,
        _with_answer(_winogrande),
        published=(74.35, 74.51),
        published_0_shot=(74.98, 75.85),
    ),
    "gsm8k": Task(
        "gsm8k", 5, lambda row: [], _solved, score="exact", published=(51.33, 52.84), published_0_shot=(10.46, 13.50)
    ),
    "ceval": Task(
        "noncommercial/ceval",
        5,
        _chinese,
        _with_answer(_chinese),
        _chinese_subject,
        published=(56.32, 59.29),
        published_0_shot=(54.53, 57.95),
        grouped=True,
    ),
    "cmmlu": Task(
        "noncommercial/cmmlu",
        5,
        _chinese,
        _with_answer(_chinese),
        _chinese_subject,
        published=(55.72, 58.24),
        published_0_shot=(54.26, 57.74),
        grouped=True,
    ),
    "truthfulqa": Task(
        "truthfulqa", 0, _truthful, _with_answer(_truthful), fixed=_PRIMER, score="mc1", published=(None, 38.80)
    ),
    "halueval_dialogue": Task("halueval_dialogue", 0, _arc, _with_answer(_arc), published=(None, 53.91)),
    "halluqa": Task("halluqa", 0, _truthful, _with_answer(_truthful), score="mc1", published=(None, 35.96)),
    "medqa": Task("medqa", 5, _letters, _with_answer(_letters), lambda _: _subject("medicine")),
    "medmcqa": Task("medmcqa", 5, _letters, _with_answer(_letters), lambda _: _subject("medicine")),
}
PUBLISHED_MC2 = {"truthfulqa": 57.72}


def questions_of(
    name: str, folder: Path, limit: int | None, zero_shot: bool, fits: Callable[[str], bool]
) -> list[Question]:
    """A sample of a task's rows, the same for a limit everywhere; raises InvalidInput, MissingFile.

    fits: whether a text of examples is short enough; the first ones are left out until it is.
    """
    if name not in TASKS:
        raise InvalidInput(f"there is no task {name!r}: choose from {', '.join(TASKS)}")
    task = TASKS[name]
    rows, shots = read_rows(folder / f"{task.file}.jsonl"), 0 if zero_shot else task.examples
    examples = read_rows(folder / f"{task.file}.dev.jsonl") if shots else []
    chosen = list(range(len(rows)))
    if limit is not None and limit < len(rows):
        chosen = sorted(random.Random(0).sample(chosen, limit))

    @cache
    def before(group: str) -> str:
        own = [row for row in examples if not task.grouped or row["task"] == group][:shots]
        while True:
            text = task.header(group) + task.fixed + "".join(f"{task.text(row)}\n\n" for row in own)
            if not own or fits(text):
                return text
            own = own[1:]

    found = []
    for number in chosen:
        row = rows[number]
        group = row["task"] if task.grouped else ""
        try:
            found.append(_question(task, row, number, group, before(group)))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InvalidInput(f"{task.file}.jsonl: row {number} is none of {name}: {error!r}") from error
    return sorted(found, key=lambda q: q.group)


def _question(task: Task, row: Row, number: int, group: str, examples: str) -> Question:
    if task.score == "exact":
        prompt = _plain(row["question"])
        return Question(number, group, examples, row["question"], str(row["answer"]), prompt=prompt)
    options, right, asked = tuple(task.options(row)), int(row["answer"]), row["question"]
    if task.score != "mc1":
        return Question(number, group, examples, asked, right, options)
    number_of = {answer: n for n, answer in enumerate(_answers(row))}
    true, false = (tuple(number_of[answer] for answer in row[f"{kind}_answers"]) for kind in ("correct", "incorrect"))
    return Question(number, group, examples, asked, right, options, first=len(row["choices"]), true=true, false=false)


def scored(task: Task, question: Question, sums: Sequence[float]) -> dict[str, float]:
    """Scores of a question by the log likelihoods (nats) of its options, as lm-eval counts them.

    acc: the likeliest option is right; acc_norm: the likeliest by character; mc1: of the first options; mc2: the share
    of probability of the right ones.
    """
    lengths = [len(continuation.strip()) for _, continuation in question.options]
    if task.score == "mc1":
        first = list(sums[: question.first])
        true, false = (sum(math.exp(sums[n] - max(sums)) for n in part) for part in (question.true, question.false))
        return {"mc1": float(first.index(max(first)) == question.right), "mc2": true / (true + false)}
    by_length = [x / max(1, length) for x, length in zip(sums, lengths, strict=True)]
    found = {"acc": sums, "acc_norm": by_length}
    return {name: float(list(x).index(max(x)) == question.right) for name, x in found.items()}


_NUMBER = re.compile(r"#### (-?[0-9.,]+)")


def is_right_number(text: str, right: str) -> float:
    """1.0 where the number behind `####` is the right one (GSM8k, strict)."""
    found = _NUMBER.search(text)
    return float(bool(found) and found[1].replace(",", "").rstrip(".") == right) if found else 0.0


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of JSON lines; raises MissingFile, InvalidInput."""
    if not path.is_file():
        raise MissingFile(f"no {path.name} in {path.parent}: docs/data.md says what the folder holds")
    try:
        return [dict(json.loads(line)) for line in path.read_text("utf-8").split("\n") if line.strip()]
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON lines: {error}") from error
