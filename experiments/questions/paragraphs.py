"""Questions about paragraphs (SQuAD, XQuAD) as evaluation rows, split by article into training, development and test.

A row reads a part of a paragraph and four other parts of the same article. `part_of` says which part of the split an
article belongs to, whatever file it comes from, so nothing that is trained on is tested.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.corpus.preparing import write_rows
from memory3.errors import CorruptFile
from memory3.text.references import split
from memory3.text.refusal import SENTENCE
from memory_model.data.tasks import QUESTIONS
from memory_model.models.tensor_files import read_json
from memory_model.terminal import console

RowData = dict[str, Any]
"""A row of an evaluation file (`memory_model.data.rows.QuestionRow`)."""
PARTS = ("training", "dev", "test")
DISTRACTORS = 4
"""Of a row: with the knowledge, what a chunk reads."""
_PART_TOKENS = 110  # of a paragraph's part, so that it fits a reference of 128 tokens with its title


def part_of(article: str) -> str:
    """Whether an article is for training, development or test; fixed by its title, whatever the file."""
    first = sha256(f"memory3 {article}".encode()).digest()[0]
    return "test" if first < 40 else "dev" if first < 80 else "training"


def read_paragraphs(path: Path) -> list[dict[str, Any]]:
    """{article, paragraph, questions: [{question, answers, plausible}]} of a file of SQuAD or in that form.

    Raises MissingFile, CorruptFile.
    """
    data = read_json(path, object, "give a file of SQuAD 2.0, such as train-v2.0.json")
    try:
        if isinstance(data, dict):
            return [
                {
                    "article": a["title"].replace("_", " "),
                    "paragraph": p["context"],
                    "questions": [
                        {
                            "question": q["question"],
                            "answers": [x["text"] for x in q["answers"]],
                            "plausible": [x["text"] for x in q.get("plausible_answers", [])],
                        }
                        for q in p["qas"]
                    ],
                }
                for a in data["data"]
                for p in a["paragraphs"]
            ]
        return [{k: p[k] for k in ("article", "paragraph", "questions")} for p in data]
    except (KeyError, TypeError) as error:
        raise CorruptFile(f"{path} has no paragraphs with questions: {error!r}") from error


def paragraph_documents(paragraphs: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Each part of a paragraph as a document {key, title, text} of a knowledge base."""
    return [
        {"key": f"{p['article']}#{number}.{part}", "title": p["article"], "text": text}
        for number, p in enumerate(paragraphs)
        for part, text in enumerate(_parts(p["paragraph"]))
    ]


def paragraph_rows(paragraphs: Sequence[dict[str, Any]], count: int | None = None) -> list[RowData]:
    """Rows {knowledge, question, right_answer, answers, title, answerable, distractors} of an article's parts.

    Unanswerable ones have `plausible` too.

    knowledge: the part of a paragraph that holds an answer; of an unanswerable question, one that holds what a
    careless reader would say. The distractors do not hold it. count: of these rows, three answerable to two
    unanswerable, one from each article in turn; None: all.
    """
    rng = random.Random("paragraphs")
    articles: dict[str, list[str]] = {}
    for p in paragraphs:
        articles.setdefault(p["article"], []).extend(_parts(p["paragraph"]))
    found: dict[bool, dict[str, list[RowData]]] = {True: {}, False: {}}
    for p in paragraphs:
        for question in p["questions"]:
            answers = list(dict.fromkeys(question["answers"]))
            named = answers or question.get("plausible", [])
            right = next((t for t in _parts(p["paragraph"]) if any(a in t for a in named[:1])), None)
            others = [t for t in articles[p["article"]] if not any(a.lower() in t.lower() for a in named)]
            if right is None or len(others) < DISTRACTORS:
                continue
            row = row_data(right, question["question"], (answers or [SENTENCE])[0], rng.sample(others, DISTRACTORS))
            row |= {"answers": answers[1:], "title": p["article"], "answerable": bool(answers)}
            row |= {} if answers else {"plausible": named[0]}
            found[bool(answers)].setdefault(p["article"], []).append(row)
    drawn = {}
    for answerable, by_article in found.items():
        pools = [rng.sample(rows, len(rows)) for rows in by_article.values()]
        drawn[answerable] = [row for row in chain(*zip_longest(*pools)) if row is not None]
    if count is None:
        return drawn[True] + drawn[False]
    return drawn[True][: count * 3 // 5] + drawn[False][: count - count * 3 // 5]


def write_paragraph_sets(files: Sequence[Path], folder: Path, training: Path, count: int) -> dict[str, int]:
    """Split files by article: squad_dev.json, squad_test.json of `count` rows each and squad_documents.jsonl.

    training: where all rows of the training articles go. Returns the number of rows by name.
    """
    every = [p for file in files for p in read_paragraphs(file)]
    part = {name: [p for p in every if part_of(p["article"]) == name] for name in PARTS}
    counts = write_sets(training.parent, {training.stem: paragraph_rows(part["training"])})
    counts |= write_sets(folder, {f"squad_{name}": paragraph_rows(part[name], count) for name in PARTS[1:]})
    documents = paragraph_documents(part["dev"] + part["test"])
    write_rows(folder / "squad_documents.jsonl", documents)
    return counts | {"squad_documents": len(documents)}


def _parts(paragraph: str) -> list[str]:
    return split(paragraph, "", lambda text: -(-len(text) // 4), _PART_TOKENS)


def row_data(knowledge: str, question: str, answer: str, distractors: list[str]) -> RowData:
    """A row that reads the knowledge and the distractors."""
    return {"knowledge": knowledge, "question": question, "right_answer": answer, "distractors": distractors}


def write_sets(folder: Path, sets: dict[str, list[RowData]]) -> dict[str, int]:
    """Write NAME.json of each set into a folder, which is made; returns the number of rows of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in sets.items():
        text = json.dumps(rows, ensure_ascii=False, indent=1) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return {name: len(rows) for name, rows in sets.items()}


def split_questions(
    files: Annotated[list[Path], typer.Argument(help="SQuAD, or lists of {article, paragraph, questions}.")],
    out: Annotated[Path, typer.Option(help="Folder for development, test and documents.")] = QUESTIONS.parent,
    training: Annotated[Path, typer.Option(help="Training questions.")] = QUESTIONS,
    rows: Annotated[int, typer.Option(help="Rows of the development and of the test file.")] = 100,
) -> None:
    """Split questions about paragraphs by article into training, development and test.

    The title alone decides the part of an article, so that files about the same articles never mix parts.
    """
    counts = write_paragraph_sets(files, out, training, rows)
    console.print(", ".join(f"{count} rows in {name}" for name, count in counts.items()))
