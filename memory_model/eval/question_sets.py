"""The question sets under `data/`: what each row reads beside the right reference, and which part it belongs to.

    hard           the four distractors hold the same field of other countries
    unanswerable   two references of the country without the field, two of others with it, one with neither
    twins          the same five references, and a question about that country which one of them answers
    paragraphs     SQuAD's questions about a part of a Wikipedia article, other parts of it as distractors

The first three are drawn from the factbook: tests from held-out countries, development sets from the others.
`part_of` splits articles into training, development and test. Everything is fixed by seeds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from memory_model.data import factbook
from memory_model.data.questions import Question
from memory_model.errors import CorruptFile
from memory_model.eval.scores import REFUSAL, says
from memory_model.references import split

RowData = dict[str, Any]
PARTS = ("training", "dev", "test")
_BESIDE = 4  # distractors of a row: with the knowledge, what a chunk reads
_PART_TOKENS = 110  # of a paragraph's part, so that it fits a reference of 128 tokens with its title


@dataclass(frozen=True)
class Holder:
    """A reference, its country, and the fields whose facts it holds."""

    country: str
    text: str
    fields: dict[str, str]


def holders(documents: Sequence[dict[str, Any]], count_tokens: Callable[[str], int]) -> list[Holder]:
    """All references of the documents, as they are split for memories."""
    return [
        Holder(d["title"], text, {field: value for field, value, _ in factbook.facts(text)})
        for d in documents
        for text in split(d["text"], d["title"], count_tokens)
    ]


def fact_sets(
    documents: Sequence[dict[str, Any]], count_tokens: Callable[[str], int]
) -> dict[str, list[RowData]]:
    """Every factbook file of `data/` by name: tests about held-out countries, development sets about the others."""
    kept = [d for d in documents if factbook.held_out(d["key"])]
    others = [d for d in documents if not factbook.held_out(d["key"])]
    test, dev = holders(kept, count_tokens), holders(others, count_tokens)
    found = {
        "heldout_questions": factbook.evaluation_rows(kept, count_tokens, 200),
        "heldout_hard": hard_rows(test, 100), "unanswerable": unanswerable_rows(test, 60),
        "facts_dev": factbook.evaluation_rows(others, count_tokens, 100, seed=1),
        "hard_dev": hard_rows(dev, 60), "unanswerable_dev": unanswerable_rows(dev, 60),
    }  # fmt: skip
    twins = {"unanswerable_twins": test, "unanswerable_dev_twins": dev}
    return found | {
        name: twin_rows(found[name.removesuffix("_twins")], references) for name, references in twins.items()
    }


def write_sets(folder: Path, sets: dict[str, list[RowData]]) -> dict[str, int]:
    """Write NAME.json of each set; returns the number of rows of each."""
    for name, rows in sets.items():
        text = json.dumps(rows, ensure_ascii=False, indent=1) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return {name: len(rows) for name, rows in sets.items()}


def hard_rows(references: Sequence[Holder], count: int, seed: int = 0) -> list[RowData]:
    """Rows whose distractors hold the asked field of other countries, with other values."""
    rng = random.Random(f"hard {seed}")
    rows = []
    for holder, field, asked in _drawn(references, rng):
        others = _others(references, holder, field, rng)
        if len(others) < _BESIDE:
            continue
        rows.append(_row(holder.text, asked.question, asked.answer, [o.text for o in others[:_BESIDE]]))
        if len(rows) == count:
            break
    return rows


def unanswerable_rows(references: Sequence[Holder], count: int, seed: int = 0) -> list[RowData]:
    """Rows that nothing answers.

    Two references of the country without the field, two of others with it, and one with neither.
    """
    rng = random.Random(f"unanswerable {seed}")
    rows = []
    for holder, field, asked in _drawn(references, rng):
        own = [
            r.text for r in references
            if r.country == holder.country and field not in r.fields and not says(r.text, asked.answer)
        ]  # fmt: skip
        others = [r.text for r in _others(references, holder, field, rng)]
        far = [r.text for r in references if r.country != holder.country and field not in r.fields]
        if len(own) < 2 or len(others) < 2 or not far:
            continue
        texts = [*rng.sample(own, 2), *others[:2], rng.choice(far)]
        rng.shuffle(texts)
        rows.append(_row(texts[0], asked.question, REFUSAL, texts[1:]) | {"answerable": False})
        if len(rows) == count:
            break
    return rows


def twin_rows(rows: Sequence[RowData], references: Sequence[Holder], seed: int = 0) -> list[RowData]:
    """For each unanswerable row the same five references with a question that one of them answers.

    The twin asks about the same country wherever two of the five are of one, which is where refusing is learnt
    by the country's name alone.
    """
    rng = random.Random(f"twins {seed}")
    by_text = {r.text: r for r in references}
    found = []
    for row in rows:
        read = [by_text[text] for text in (row["knowledge"], *row["distractors"])]
        countries = [r.country for r in read]
        asked = [
            (r, q) for r in read if countries.count(r.country) == 2
            for ways in factbook.questions(r.country, r.text) for q in ways
            if all(o is r or o.country != r.country or q.line.partition(": ")[0] not in o.fields for o in read)
        ]  # fmt: skip
        if asked:
            holder, q = rng.choice(asked)
            found.append(_row(holder.text, q.question, q.answer, [r.text for r in read if r is not holder]))
    return found


def part_of(article: str) -> str:
    """Whether an article is for training, development or test; fixed by its title, whatever the file."""
    first = sha256(f"memory3 {article}".encode()).digest()[0]
    return "test" if first < 40 else "dev" if first < 80 else "training"


def read_paragraphs(path: Path) -> list[dict[str, Any]]:
    """{article, paragraph, questions: [{question, answers, plausible}]} of a file of SQuAD or in that form.

    Raises CorruptFile.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict):
            return [
                {"article": a["title"].replace("_", " "), "paragraph": p["context"], "questions": [
                    {"question": q["question"], "answers": [x["text"] for x in q["answers"]],
                     "plausible": [x["text"] for x in q.get("plausible_answers", [])]} for q in p["qas"]]}
                for a in data["data"] for p in a["paragraphs"]
            ]  # fmt: skip
        return [{k: p[k] for k in ("article", "paragraph", "questions")} for p in data]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptFile(f"{path} has no paragraphs with questions: {error!r}") from error


def paragraph_documents(paragraphs: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Each part of a paragraph as a document {key, title, text} of a knowledge base."""
    return [
        {"key": f"{p['article']}#{number}.{place}", "title": p["article"], "text": text}
        for number, p in enumerate(paragraphs)
        for place, text in enumerate(_parts(p["paragraph"]))
    ]


def paragraph_rows(paragraphs: Sequence[dict[str, Any]], count: int | None = None) -> list[RowData]:
    """Rows {knowledge, question, right_answer, answers, title, answerable, distractors} of an article's parts.

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
        for asked in p["questions"]:
            answers = list(dict.fromkeys(asked["answers"]))
            named = answers or asked.get("plausible", [])
            right = next((t for t in _parts(p["paragraph"]) if any(a in t for a in named[:1])), None)
            others = [t for t in articles[p["article"]] if not any(a.lower() in t.lower() for a in named)]
            if right is None or len(others) < _BESIDE:
                continue
            row = _row(right, asked["question"], (answers or [REFUSAL])[0], rng.sample(others, _BESIDE))
            row |= {"answers": answers[1:], "title": p["article"], "answerable": bool(answers)}
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
    training.parent.mkdir(parents=True, exist_ok=True)
    counts = write_sets(training.parent, {training.stem: paragraph_rows(part["training"])})
    counts |= write_sets(folder, {f"squad_{name}": paragraph_rows(part[name], count) for name in PARTS[1:]})
    documents = paragraph_documents(part["dev"] + part["test"])
    lines = "".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents)
    (folder / "squad_documents.jsonl").write_text(lines, encoding="utf-8")
    return counts | {"squad_documents": len(documents)}


def _parts(paragraph: str) -> list[str]:
    return split(paragraph, "", lambda text: -(-len(text) // 4), _PART_TOKENS)


def _row(knowledge: str, question: str, answer: str, distractors: list[str]) -> RowData:
    return {
        "knowledge": knowledge, "question": question, "right_answer": answer, "distractors": distractors
    }  # fmt: skip


def _drawn(references: Sequence[Holder], rng: random.Random) -> Iterator[tuple[Holder, str, Question]]:
    """Every short fact once, in random order: its reference, its field, and one way to ask for it."""
    pool = [(r, ways) for r in references for ways in factbook.questions(r.country, r.text)]
    for holder, ways in rng.sample(pool, len(pool)):
        asked = rng.choice(ways)
        yield holder, asked.line.partition(": ")[0], asked


def _others(references: Sequence[Holder], holder: Holder, field: str, rng: random.Random) -> list[Holder]:
    """One reference of each other country that holds the field with another value, in random order."""
    found = {
        r.country: r for r in references
        if r.country != holder.country and r.fields.get(field, holder.fields[field]) != holder.fields[field]
    }  # fmt: skip
    return rng.sample(list(found.values()), len(found))
