"""The committed question sets are what their names promise, and are made anew from the same documents."""

import json
import random
import re
from typing import Any

import pytest

from experiments.questions.countries import fact_sets, holders, invented_documents, twin_rows, unanswerable_rows
from experiments.questions.records import filled, invented_records, record_rows
from memory3.text.tokenizer import Tokenizer
from memory_model.data import factbook
from memory_model.data.rows import read_rows
from memory_model.models.folder import ModelFolder
from testing.programs import ROOT

DATA = ROOT / "data"
TITLES = ("Alpha", "Beta", "Gamma", "Delta", "Epsilon", "Zeta")
FIELDS = ("Capital - name", "Coastline", "Airports", "Climate")


def documents(titles: tuple[str, ...]) -> list[dict[str, Any]]:
    """A country's four facts, two references each."""
    return [{"key": t, "title": t, "text": "\n".join(f"{f}: {f[:4]} of {t}" for f in FIELDS)} for t in titles]


def small() -> list[Any]:
    return holders(documents(TITLES), lambda text: 60 * len(text.splitlines()))


def committed(name: str) -> list[dict[str, Any]]:
    return list(json.loads((DATA / f"{name}.json").read_text()))


def test_nothing_that_an_unanswerable_row_reads_answers_it() -> None:
    for row in unanswerable_rows(small(), 10):
        country = next(t for t in TITLES if t in row["question"])
        field = next(
            f for f in FIELDS if any(q.question == row["question"] for q in factbook.questions(country, f"{f}: x")[0])
        )
        read = [row["knowledge"], *row["distractors"]]
        assert not any(country in text and f"{field}: " in text for text in read)
        assert any(country in text for text in read)
        assert any(f"{field}: " in text for text in read)


def test_a_twin_reads_the_same_references_and_exactly_one_of_them_answers() -> None:
    references = small()
    rows = unanswerable_rows(references, 10)
    twins = twin_rows(rows, references)
    assert len(twins) == len(rows)
    for row, twin in zip(rows, twins, strict=True):
        assert {row["knowledge"], *row["distractors"]} == {twin["knowledge"], *twin["distractors"]}
        country = next(t for t in TITLES if t in twin["question"])
        field = next(f for f in FIELDS if twin["right_answer"].startswith(f[:4]))
        holding = [t for t in (twin["knowledge"], *twin["distractors"]) if country in t and f"{field}: " in t]
        assert holding == [twin["knowledge"]]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("heldout_hard", 150),
        ("hard_dev", 100),
        ("unanswerable", 150),
        ("unanswerable_dev", 100),
        ("unanswerable_twins", 148),
        ("unanswerable_dev_twins", 99),
    ],
)
def test_the_committed_sets_are_whole_and_readable(name: str, count: int) -> None:
    rows = list(read_rows(committed(name)))
    assert len(rows) == count
    for row in rows:
        assert row.distractors is not None
        assert len(row.distractors) == 4
        assert row.answerable == (name not in ("unanswerable", "unanswerable_dev"))


@pytest.mark.parametrize(("name", "held_out"), [("heldout_hard", True), ("facts_dev", False), ("hard_dev", False)])
def test_tests_are_about_held_out_countries_and_development_sets_about_invented_ones(name: str, held_out: bool) -> None:
    kept = {d["title"] for d in json.loads((DATA / "heldout.json").read_text())}
    real = {d["title"] for d in factbook.read_jsonl(DATA / "factbook.jsonl")}
    for row in committed(name):
        for text in (row["knowledge"], *row.get("distractors", [])):
            title = text.split("\n")[0]
            assert title in kept if held_out else title not in real


def test_an_invented_country_has_the_values_of_others_and_nothing_of_a_held_out_one() -> None:
    text = "Climate: mild in {0}\nAdministrative divisions: 1 county; Shire{1}\nCoastline: {1}\nArea: 1,{2}43 km (2015)"
    real = [
        {"key": f"key {n}", "title": f"Land{n}", "text": text.format(f"Land{n}", letter, n)}
        for n, letter in enumerate("abcdefgh")
    ]
    letters = {letter for n, letter in enumerate("abcdefgh") if not factbook.held_out(f"key {n}")}
    assert len(letters) < len(real)
    made = invented_documents(real)
    assert made == invented_documents(real)
    assert [d["title"] for d in invented_documents(real, ["Siam"])] == ["Siam"]
    assert {d["title"] for d in made} == {f"Shire{letter}" for letter in letters}
    for document in made:
        climate, _, coast, area = document["text"].splitlines()
        assert climate == f"Climate: mild in {document['title']}"
        assert coast[-1] in letters
        assert re.fullmatch(r"Area: 1,\d{3} km \(2015\)", area)
    assert any("43 km" not in document["text"] for document in made)


def test_the_records_of_a_row_are_of_one_kind_that_no_other_part_has_and_one_answers_or_none() -> None:
    kinds = {part: {r["metadata"]["kind"] for r in invented_records(part)} for part in ("training", "dev", "test")}
    assert not (kinds["dev"] | kinds["test"]) & kinds["training"] | kinds["dev"] & kinds["test"]
    for part in ("dev", "test"):
        rows = record_rows(part)
        assert rows == committed(f"records_{part}")
        for row in rows:
            title, *lines = row["knowledge"].splitlines()
            answers = [
                q.answer
                for ways in factbook.questions(title, "\n".join(lines))
                for q in ways
                if q.question == row["question"]
            ]
            assert answers == ([row["right_answer"]] if row.get("answerable", True) else [])
            assert not any(text.startswith(f"{title}\n") for text in row["distractors"])


def test_a_template_is_filled_with_numbers_names_and_pools() -> None:
    values = {filled("{1-2} {colour}|{a|b}{name}", {"colour": "red"}, random.Random(n)) for n in range(40)}
    assert {v for v in values if v.endswith("red")} == {"1 red", "2 red"}
    assert all(re.fullmatch(r"[ab][A-Z][a-z]{4,8}", v) for v in values if not v.endswith("red"))


@pytest.mark.slow
def test_the_committed_sets_follow_from_the_committed_documents() -> None:
    count = Tokenizer.from_json(ModelFolder.open().checkpoint.tokenizer_json).count
    for name, rows in fact_sets(factbook.read_jsonl(DATA / "factbook.jsonl"), count).items():
        assert rows == committed(name), name
