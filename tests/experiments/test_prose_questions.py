"""Training questions about prose: twins lack what answers a refused question, and development articles are held out."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.questions import prose
from experiments.questions.values import redrawn
from memory3.text.refusal import SENTENCE

TEXT = "The mill was built in 1843. It burned down in 1871. A museum opened there in May 1990."
QUESTIONS = [("When was the mill built?", "1843"), ("When did it burn?", "1871"), ("When did the museum open?", "1990")]


def squad(articles: int, paragraphs: int = 3) -> dict[str, Any]:
    """A file in SQuAD's form."""
    questions = [{"question": q, "answers": [{"text": a}]} for q, a in QUESTIONS]
    paragraph = {"context": TEXT, "qas": questions}
    return {"data": [{"title": f"Mill_{n}", "paragraphs": [paragraph] * paragraphs} for n in range(articles)]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files under the names of the published ones."""
    folder = tmp_path_factory.mktemp("published")
    for name in ("squadshifts_wiki", "squadshifts_amazon", "squad2_dev_12articles", "xquad_en"):
        (folder / f"{name}.json").write_text(json.dumps(squad(12)))
    natural = [
        {
            "title": f"River {n}",
            "knowledge": f"River number {n} is {n}00 km long.",
            "question": f"how long is river {n}",
            "right_answer": f"{n}00 km",
            "answers": [],
        }
        for n in range(1, 200)
    ]
    (folder / "nq_gold_train.json").write_text(json.dumps(natural))
    return folder


Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def made(folder: Path, out: Path) -> tuple[Rows, Rows]:
    """Rows for training, and those of Wikipedia for development."""
    return rows_of(folder, out)


def rows_of(folder: Path, out: Path) -> tuple[Rows, Rows]:
    prose.prose_questions(folder, out, model=None)
    training = json.loads((out / "prose_training.json").read_text())
    return training, json.loads((out / "squadshifts_wiki_dev.json").read_text())


def test_refused_questions_are_not_answered_by_their_text(made: tuple[Rows, Rows]) -> None:
    training, _ = made
    answers = dict(QUESTIONS)
    twins = [r for r in training if not r["answerable"] and r["question"] in answers]
    assert len(twins) > 20
    for row in twins:
        assert row["right_answer"] == SENTENCE
        assert answers[row["question"]] not in row["knowledge"]
        assert row["plausible"] in row["knowledge"], "what seems to answer is there"


def test_near_misses_are_of_other_passages(made: tuple[Rows, Rows]) -> None:
    training, _ = made
    rivers = [r for r in training if not r["answerable"] and r["question"].startswith("how long is river")]
    assert rivers
    assert not any(r["knowledge"].startswith(f"River number {r['question'].split()[-1]} ") for r in rivers)


def test_held_articles_are_for_development_alone(made: tuple[Rows, Rows]) -> None:
    training, development = made
    held = {row["title"] for row in development}
    assert held == {"Mill 0", "Mill 1", "Mill 2", "Mill 3"}
    wiki = training[: next(n for n, r in enumerate(training) if r["title"].startswith("Customer"))]
    assert not held & {r["title"].removesuffix(" (extract)") for r in wiki}


def test_notes_are_listed_with_their_twins(made: tuple[Rows, Rows]) -> None:
    training, _ = made
    bus = [r for r in training if r["title"] == "Bus 14, weekdays"]
    assert {r["answerable"] for r in bus} == {True, False}
    last = [r for r in bus if r["question"] == "When is the last 14 in the evening?" and not r["answerable"]]
    assert last, "the twin without that sentence"
    assert "20:15" not in last[0]["knowledge"]


def test_a_twin_of_a_note_is_not_read_beside_the_note(made: tuple[Rows, Rows]) -> None:
    training, _ = made
    listings: dict[str, dict[str, set[str]]] = {}
    for row in training:
        if row.get("article"):
            listings.setdefault(row["article"], {}).setdefault(row["title"], set()).add(row["knowledge"])
    assert len(listings) > 3
    assert all(len(versions) == 1 for notes in listings.values() for versions in notes.values())
    versions = {text for notes in listings.values() for text in notes["Bus 14, weekdays"]}
    assert len(versions) > 1, "the listings differ"


def test_a_listing_has_values_of_its_own_that_its_answers_share(made: tuple[Rows, Rows]) -> None:
    training, _ = made
    pump = [row for row in training if row["title"] == "Heat pump Aeris 8"]
    pins = {
        row["right_answer"] for row in pump if row["question"] == "What is the pin of the app?" and row["answerable"]
    }
    assert len(pins) > 5, "each listing draws another"
    assert all(row["right_answer"] in row["knowledge"] for row in pump if row["right_answer"] in pins)
    assert all(len(pin) == 4 for pin in pins)
    hall = {
        row["knowledge"] for row in training if row["title"] == "Climbing hall Krag" and "Courses" in row["knowledge"]
    }
    assert all("Day ticket 13, shoes 4" in text for text in hall if "Day ticket" in text), "17 is reckoned from them"


@pytest.mark.parametrize(
    ("text", "answer", "form"),
    [
        ("The code is QX-4471b.", "QX-4471b", r"[A-Z]{2}-\d{4}[a-z]"),
        ("It opens at 16:15.", "16:15", r"([6-9]|1\d|2[0-2]):[0-5][05]"),
        ("We are back on 4 July.", "4 July", r"([1-9]|1\d|2[0-8]) July"),
        ("Bought in 2024.", "2024", r"20\d\d"),
        ("Call Mrs Vogt.", "Mrs Vogt", r"Mrs \w{4,}"),
    ],
)
def test_a_value_is_redrawn_in_its_form(text: str, answer: str, form: str) -> None:
    row = {"title": "Note", "knowledge": text, "question": "Which?", "right_answer": answer, "answers": []}
    found = [redrawn([row | {"answerable": True}], random.Random(seed))[0] for seed in range(20)]
    assert all(re.fullmatch(form, one["right_answer"]) for one in found)
    assert all(one["knowledge"] == text.replace(answer, one["right_answer"]) for one in found)
    assert len({one["right_answer"] for one in found}) > 5


def test_a_value_that_a_question_names_stays() -> None:
    rows = [
        {"title": "Bus 14", "knowledge": "Line 14 takes 14 minutes.", "question": q, "right_answer": a, "answers": []}
        for q, a in (("How long does line 14 take?", "14 minutes"), ("Which line is it?", "14"))
    ]
    answerable = [row | {"answerable": True} for row in rows]
    assert redrawn(answerable, random.Random(0)) == answerable


def test_a_note_with_a_reckoned_answer_keeps_all_its_values() -> None:
    note = {"title": "Sold", "knowledge": "Cupboard 140, paid 40. Lamp: code 7719.", "answers": [], "answerable": True}
    asked = (("What does it cost?", "140"), ("How much is left to pay?", "100"), ("What is the code?", "7719"))
    rows = [note | {"question": question, "right_answer": answer} for question, answer in asked]
    assert redrawn(rows, random.Random(0)) == rows
    told = [row for row in rows if row["right_answer"] != "100"]
    assert redrawn(told, random.Random(0)) != told


@pytest.mark.slow
def test_the_same_files_give_the_same_rows(made: tuple[Rows, Rows], folder: Path, tmp_path: Path) -> None:
    assert rows_of(folder, tmp_path) == made


def test_rows_with_neighbours_are_refused_where_nothing_that_is_read_answers(
    made: tuple[Rows, Rows], out: Path
) -> None:
    training, _ = made
    rows = prose.with_neighbours(training, 200, random.Random(0))
    assert {row["answerable"] for row in rows} == {True, False}
    answering = {(r["question"], f"{r['title']}\n{r['knowledge']}") for r in training if r["answerable"]}
    for row in rows:
        read = [row["knowledge"], *row["distractors"]]
        assert len(set(read)) == 5
        assert row["answerable"] is any((row["question"], text) in answering for text in read), row
        own = set(prose.sentences(row["knowledge"].partition("\n")[2]))
        assert not any(own & set(prose.sentences(text)) for text in row["distractors"])
    asked = json.loads((out / "refusal_training.json").read_text())
    assert 0.3 < sum(row["answerable"] is False for row in asked if "answerable" in row) / len(asked) < 0.6
    assert all(len(row["distractors"]) == 4 for row in asked)
