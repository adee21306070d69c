"""The factbook: what is held out, by which names, and questions with their answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memory_model.data import factbook
from memory_model.errors import CorruptFile

ROOT = Path(__file__).resolve().parents[3]


def test_the_factbook_has_every_country_once_and_its_held_out_ones_are_listed() -> None:
    documents = factbook.read_jsonl(ROOT / "data" / "factbook.jsonl")
    assert len(documents) == len({d["key"] for d in documents}) > 240
    listed = {c["key"] for c in json.loads((ROOT / "data" / "heldout.json").read_text())}
    assert listed == {d["key"] for d in documents if factbook.held_out(d["key"])}
    rows = json.loads((ROOT / "data" / "heldout_questions.json").read_text())
    assert len(rows) == 200
    titles = {d["title"] for d in documents if d["key"] in listed}
    for row in rows:
        assert row["knowledge"].splitlines()[0] in titles
        assert row["right_answer"] in row["knowledge"]


def test_dates_are_no_part_of_an_answer() -> None:
    asked = factbook.questions("Norway", "Norway\nPopulation: 5,207,689 (July 2015 est.)\nNA field: NA")
    assert [[q.answer for q in ways] for ways in asked] == [["5,207,689"] * 2]
    assert asked[0][0].question == "What is the population of Norway?"


def test_a_broken_line_of_a_knowledge_base_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kb.jsonl"
    whole = '{"key": "a", "title": "A", "text": "Is."}\n'
    for broken in ("{broken", '["a"]', '{"key": "a", "title": "A"}', '{"key": "a", "title": "A", "text": 3}'):
        path.write_text(f"{whole}\n{broken}\n")
        with pytest.raises(CorruptFile, match="line 3"):
            factbook.read_jsonl(path)


@pytest.fixture(scope="module")
def titles() -> factbook.HeldOutTitles:
    return factbook.HeldOutTitles(factbook.read_jsonl(ROOT / "data" / "factbook.jsonl"))


@pytest.mark.parametrize(
    "title",
    ["Burma", "Myanmar", "Russian Federation", "History of Russia", "Saint Barthélemy", "Türkiye", "Benin: Economy"],
)  # fmt: skip
def test_a_text_about_a_held_out_country_is_found_by_any_name(titles: factbook.HeldOutTitles, title: str) -> None:
    assert title in titles


@pytest.mark.parametrize("title", ["Norway", "Republic", "French language", "Union", "South Korea", "The Islands", ""])
def test_a_text_about_something_else_is_not_held_out(titles: factbook.HeldOutTitles, title: str) -> None:
    assert title not in titles
