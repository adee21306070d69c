"""The question sets under `data/`: what each row reads besides the right reference, and which part it belongs to.

    hard           the four distractors hold the same field of other countries
    unanswerable   two references of the country without the field, two of others with it, one with neither
    twins          the same five references, and a question about that country which one of them answers

All are drawn from the factbook, tests from held-out countries, and fixed by seeds. The countries of the development
sets are invented and in no tuning either: countries of tuning hide what a model refuses wrongly of others. Questions
about paragraphs: `experiments.questions.paragraphs`.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.corpus.preparing import write_rows
from experiments.questions.paragraphs import DISTRACTORS, RowData, row_data, write_sets
from experiments.questions.records import invented_records, record_rows
from memory3.text.references import split
from memory3.text.refusal import SENTENCE
from memory3.text.tokenizer import Tokenizer
from memory_model.data import factbook
from memory_model.data.factbook import FACTBOOK, Question
from memory_model.defaults import ASSETS, TINY
from memory_model.eval.scores import normalise
from memory_model.models.folder import ModelFolder
from memory_model.terminal import console

PLACES = (
    "Alaska",
    "Aragon",
    "Andalusia",
    "Bali",
    "Bavaria",
    "Bengal",
    "Bohemia",
    "Borneo",
    "Brittany",
    "Burgundy",
    "California",
    "Castile",
    "Catalonia",
    "Corsica",
    "Crete",
    "Crimea",
    "Dalmatia",
    "Flanders",
    "Gaul",
    "Galicia",
    "Hawaii",
    "Hokkaido",
    "Java",
    "Kashmir",
    "Kurdistan",
    "Lapland",
    "Lombardy",
    "Macedon",
    "Manchuria",
    "Mesopotamia",
    "Moravia",
    "Normandy",
    "Nova Scotia",
    "Okinawa",
    "Oregon",
    "Patagonia",
    "Persia",
    "Prussia",
    "Punjab",
    "Quebec",
    "Provence",
    "Sardinia",
    "Saxony",
    "Scotland",
    "Siam",
    "Siberia",
    "Sicily",
    "Silesia",
    "Sumatra",
    "Tasmania",
    "Texas",
    "Tibet",
    "Transylvania",
    "Tuscany",
    "Umbria",
    "Virginia",
    "Wales",
    "Yugoslavia",
    "Yukon",
    "Zanzibar",
)
"""Places that everybody knows and the factbook has no document of: the countries of the development sets."""
_NUMBER = re.compile(  # of two digits or more, no year, day or "1,000 births"
    r"(?<![\d.,])(?!1,000\b|(?:1[6-9]|20)\d\d(?!\d|[.,]\d))\d[\d.,]*\d(?! [A-Z][a-z]+ \d{4})"
)


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


def invented_documents(
    documents: Sequence[dict[str, Any]], names: Sequence[str] = (), count: int = 600
) -> list[dict[str, Any]]:
    """Countries that do not exist, in the form of `data/factbook.jsonl`; nothing of a held-out country is in them.

    names: theirs; none: of `count` provinces and counties. Each has the fields of a real country. Every value is
    another one's, under the new name; the digits of its numbers are drawn anew, the first and the years aside.
    """
    rng = random.Random("invented")
    real = [d for d in documents if not factbook.held_out(d["key"])]
    words = {word for d in documents for word in re.findall(r"\w+", _plain(d["title"]).lower())}
    values: dict[str, list[tuple[str, str]]] = {}
    named: dict[str, dict[str, Any]] = {}
    for document in real:
        for field, value, _ in factbook.facts(document["text"]):
            values.setdefault(field, []).append((document["title"], value))
            if field == "Administrative divisions":
                for name in re.split(r", |; ", value)[1:]:
                    if re.fullmatch(r"[A-Z][a-z]{3,}( [A-Z][a-z]{3,})?", name) and not words & {*name.lower().split()}:
                        named[name] = document

    def redrawn(number: re.Match[str]) -> str:
        return number[0][0] + re.sub(r"\d", lambda _: str(rng.randrange(10)), number[0][1:])

    made = []
    named = {name: rng.choice(real) for name in names} or named
    for title in rng.sample(sorted(named), min(count, len(named))):
        lines = []
        for field, *_ in factbook.facts(named[title]["text"]):
            donor, value = rng.choice(values[field])
            lines.append(f"{field}: {_NUMBER.sub(redrawn, value.replace(donor, title))}")
        key = f"invented {title}"
        made.append({"key": key, "title": title, "text": "\n".join(lines), "metadata": {"code": key}})
    return made


def invent_countries(
    data: Annotated[Path, typer.Option(help="JSONL of countries.")] = FACTBOOK,
    out: Annotated[Path, typer.Option(help="JSONL of these and the invented ones.")] = Path("build/countries.jsonl"),
) -> None:
    """Invent countries and other records to tune on, besides the real ones, to teach reading, not memorising."""
    real = factbook.read_jsonl(data)
    made, records = invented_documents(real), invented_records("training")
    write_rows(out, [*real, *made, *records])
    console.print(f"{len(made)} invented countries and {len(records)} records in {out}")


def fact_sets(documents: Sequence[dict[str, Any]], count_tokens: Callable[[str], int]) -> dict[str, list[RowData]]:
    """Every factbook file of `data/` by name: tests about held-out countries, development sets about invented ones."""
    kept = [d for d in documents if factbook.held_out(d["key"])]
    others = invented_documents(documents, PLACES)
    test, dev = holders(kept, count_tokens), holders(others, count_tokens)
    found = {
        "heldout_questions": evaluation_rows(kept, count_tokens, 200),
        "heldout_hard": hard_rows(test, 150),
        "unanswerable": unanswerable_rows(test, 150),
        "facts_dev": evaluation_rows(others, count_tokens, 100, seed=1),
        "hard_dev": hard_rows(dev, 100),
        "unanswerable_dev": unanswerable_rows(dev, 100),
    }
    twins = {"unanswerable_twins": test, "unanswerable_dev_twins": dev}
    return found | {name: twin_rows(found[name.removesuffix("_twins")], read) for name, read in twins.items()}


def draw_questions(data: Annotated[Path, typer.Option(help="JSONL of countries.")] = FACTBOOK) -> None:
    """Draw the question sets about countries again, into the folder of --data, and the model's calibration rows."""
    countries, tokenizer = (
        factbook.read_jsonl(data),
        Tokenizer.from_json(ModelFolder.open(ASSETS / TINY).checkpoint.tokenizer_json),
    )
    records = {"records_dev": record_rows("dev"), "records_test": record_rows("test")}
    sets = write_sets(data.parent, fact_sets(countries, tokenizer.count) | records)
    introductions = factbook.read_jsonl(data.with_name("introductions.jsonl"), ("question", "answer", "text"))
    write_rows(ASSETS / TINY / "calibration.jsonl", calibration_rows(countries, introductions, tokenizer.count))
    console.print(", ".join(f"{count} rows in {name}.json" for name, count in sets.items()))


def evaluation_rows(
    documents: Sequence[dict[str, Any]], count_tokens: Callable[[str], int], count: int, seed: int = 0
) -> list[dict[str, str]]:
    """Rows {knowledge, question, right_answer} about the documents, for `memory-model eval`; fixed by the seed."""
    rng = random.Random(seed)
    pool = []
    for document in documents:
        for text in split(document["text"], document["title"], count_tokens):
            pool += [(text, asks) for asks in factbook.questions(document["title"], text)]
    rows = []
    for text, asks in rng.sample(pool, min(count, len(pool))):
        question = rng.choice(asks)
        rows.append({"knowledge": text, "question": question.question, "right_answer": question.answer})
    return rows


def calibration_rows(
    documents: Sequence[dict[str, Any]], introductions: Sequence[dict[str, Any]], count_tokens: Callable[[str], int]
) -> list[dict[str, str]]:
    """64 rows about countries of tuning, each followed by one about an introduction of tuning that fits a reference.

    `export.activations` reads four other references with each.
    """
    facts = evaluation_rows([d for d in documents if not factbook.held_out(d["key"])], count_tokens, 64)
    whole = {a["text"]: a for a in introductions if count_tokens(a["text"]) <= 128}
    drawn = random.Random("calibration").sample(list(whole.values()), len(facts))
    prose = ({"knowledge": a["text"], "question": a["question"], "right_answer": a["answer"]} for a in drawn)
    return [row for pair in zip(facts, prose, strict=True) for row in pair]


def says(answer: str, claim: str) -> bool:
    """Whether the normalised words of `claim` stand in `answer`, together and in order, accents aside."""
    words = normalise(_plain(claim))
    return bool(words) and f" {words} " in f" {normalise(_plain(answer))} "


def _plain(text: str) -> str:
    """Letters without their accents: Brasília is Brasilia."""
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def hard_rows(references: Sequence[Holder], count: int) -> list[RowData]:
    """Rows whose distractors hold the requested field of other countries, with other values."""
    rng = random.Random("hard 0")
    drawn = (
        (holder, question, _others(references, holder, name, rng)) for holder, name, question in _drawn(references, rng)
    )
    rows = (
        row_data(holder.text, question.question, question.answer, [o.text for o in others[:DISTRACTORS]])
        for holder, question, others in drawn
        if len(others) >= DISTRACTORS
    )
    return list(islice(rows, count))


def unanswerable_rows(references: Sequence[Holder], count: int) -> list[RowData]:
    """Rows that nothing answers.

    Two references of the country without the field, two of others with it, and one with neither.
    """
    rng = random.Random("unanswerable 0")
    rows = []
    for holder, field, question in _drawn(references, rng):
        own = [
            r.text
            for r in references
            if r.country == holder.country and field not in r.fields and not says(r.text, question.answer)
        ]
        others = [r.text for r in _others(references, holder, field, rng)]
        far = [r.text for r in references if r.country != holder.country and field not in r.fields]
        if len(own) < 2 or len(others) < 2 or not far:
            continue
        texts = [*rng.sample(own, 2), *others[:2], rng.choice(far)]
        rng.shuffle(texts)
        rows.append(row_data(texts[0], question.question, SENTENCE, texts[1:]) | {"answerable": False})
        if len(rows) == count:
            break
    return rows


def twin_rows(rows: Sequence[RowData], references: Sequence[Holder]) -> list[RowData]:
    """For each unanswerable row the same five references with a question that one of them answers.

    The twin asks about the same country wherever two of the five are of one, which is where refusing is learnt
    by the country's name alone.
    """
    rng = random.Random("twins 0")
    by_text = {r.text: r for r in references}
    found = []
    for row in rows:
        read = [by_text[text] for text in (row["knowledge"], *row["distractors"])]
        countries = [r.country for r in read]
        questions = [
            (r, q)
            for r in read
            if countries.count(r.country) == 2
            for ways in factbook.questions(r.country, r.text)
            for q in ways
            if all(o is r or o.country != r.country or q.field not in o.fields for o in read)
        ]
        if questions:
            holder, q = rng.choice(questions)
            found.append(row_data(holder.text, q.question, q.answer, [r.text for r in read if r is not holder]))
    return found


def _drawn(references: Sequence[Holder], rng: random.Random) -> Iterator[tuple[Holder, str, Question]]:
    """Every short fact once, in random order: its reference, its field, and one way to ask for it."""
    pool = [(r, ways) for r in references for ways in factbook.questions(r.country, r.text)]
    for holder, ways in rng.sample(pool, len(pool)):
        question = rng.choice(ways)
        yield holder, question.field, question


def _others(references: Sequence[Holder], holder: Holder, field: str, rng: random.Random) -> list[Holder]:
    """One reference of each other country that holds the field with another value, in random order."""
    found = {
        r.country: r
        for r in references
        if r.country != holder.country and r.fields.get(field, holder.fields[field]) != holder.fields[field]
    }
    return rng.sample(list(found.values()), len(found))
