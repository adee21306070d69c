"""`languages`: by the language of the questions, whether the search finds the right note and a model reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memory3.errors import InvalidInput
from memory_model.data.rows import QuestionRow, read_rows
from memory_model.eval.retrieval import ReferenceIndex
from memory_model.eval.scores import normalise, token_f1
from memory_model.export.embedder_cache import open_embedder
from memory_model.models.tensor_files import read_json
from memory_model.terminal import console

QUESTIONS = [Path("data/languages_dev.json"), Path("data/languages_search_dev.json")]
NOTES = [Path("data/everyday_dev.json"), Path("data/everyday_test.json"), Path("data/everyday_training.json")]
READ = 5
"""Memories of one chunk."""
SAME = 0.6
"""Word F1 from which an answer counts as right that does not contain a right one."""


def languages(
    answers: Annotated[Path | None, typer.Option(help="What `memory-model eval --json` wrote for --data.")] = None,
    data: Annotated[
        list[Path], typer.Option(help="Rows with a `language`; with --answers those that were answered.")
    ] = QUESTIONS,
    notes: Annotated[list[Path], typer.Option(help="Rows whose notes are in the knowledge base, too.")] = NOTES,
    embedder: Annotated[Path | None, typer.Option(help="Folder of an exported embedder; default: minilm.")] = None,
) -> None:
    """Print for each language how many notes are found among five and first, or how many answers are right."""
    files = [read_json(path, list) for path in data]
    rows = [(str(one.get("language", "")), row) for f in files for one, row in zip(f, read_rows(f), strict=True)]
    if answers:
        given = read_json(answers)
        if [a["question"] for a in given["answers"]] != [r.question for _, r in rows]:
            raise InvalidInput(f"{answers} does not answer the questions of {', '.join(map(str, data))}")
        right = {
            condition: [is_right(a[condition], row) for a, (_, row) in zip(given["answers"], rows, strict=True)]
            for condition in given["conditions"]
        }
    else:
        others = [row for path in notes for row in read_rows(read_json(path, list), name=str(path))]
        right = found_notes([row for _, row in rows], others, embedder)
    for language in dict.fromkeys(name for name, _ in rows):
        for what, values in right.items():
            of = [value for value, (name, _) in zip(values, rows, strict=True) if name == language]
            console.print(f"{language}: {what} {sum(of)} of {len(of)}")


def is_right(answer: str, row: QuestionRow) -> bool:
    """Whether the answer contains a right one, or shares most of its words."""
    return any(normalise(r) in normalise(answer) or token_f1(answer, r) >= SAME for r in row.right_answers)


def found_notes(rows: list[QuestionRow], others: list[QuestionRow], embedder: Path | None) -> dict[str, list[bool]]:
    """Whether each row's note is among the five that the search finds in all notes, and whether it is the first."""
    texts = list(dict.fromkeys(t for row in [*rows, *others] for t in (row.knowledge, *(row.distractors or ()))))
    found = ReferenceIndex.of(texts, open_embedder(embedder)).nearest([row.question for row in rows], READ)
    named = [[texts[number] for number in numbers] for numbers in found]
    return {
        f"among {READ}": [row.knowledge in best for row, best in zip(rows, named, strict=True)],
        "first": [best[:1] == [row.knowledge] for row, best in zip(rows, named, strict=True)],
    }
