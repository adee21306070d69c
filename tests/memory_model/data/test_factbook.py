"""Documents and passages: what is held out, by which names, questions with their answers, how files are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.corpus.preparing import write_rows
from memory3.errors import CorruptFile, MissingFile
from memory_model.data import factbook
from memory_model.data.passages import Passage, PassageQuestion, held_out, read_rows
from testing.programs import ROOT


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


def test_passages_of_a_document_and_of_an_article_in_two_sources_fall_on_one_side() -> None:
    keys = [f"Article {n}" for n in range(200)]
    out = [held_out("wikipedia", key) for key in keys]
    assert any(out)
    for part in (0, 17):
        assert [held_out("wikipedia-articles", f"{key}#{part}") for key in keys] == out


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    passages = [Passage("s", "Œuvre#0", "Œuvre", "ä"), Passage("s", "b#0", "b", "c")]
    write_rows(tmp_path / "s.jsonl", passages)
    assert list(read_rows(tmp_path / "s.jsonl", Passage)) == passages
    questions = [PassageQuestion("q?", "ä", "T\nä", "s", "k#0")]
    write_rows(tmp_path / "asked" / "q.jsonl", questions)
    assert list(read_rows(tmp_path / "asked" / "q.jsonl", PassageQuestion)) == questions
    with pytest.raises(MissingFile, match="prepare-data"):
        list(read_rows(tmp_path / "none.jsonl", Passage))


def test_a_broken_line_is_told_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "a", "key": "b", "title": "c", "text": "d"}\n{"key": 1}\n')
    with pytest.raises(CorruptFile, match="line 2"):
        list(read_rows(tmp_path / "a.jsonl", Passage))
