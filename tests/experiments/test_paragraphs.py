"""Questions about paragraphs are split by article; a row holds its answer and its distractors do not."""

import json
from pathlib import Path

import pytest

from experiments.questions.paragraphs import (
    paragraph_documents,
    paragraph_rows,
    part_of,
    read_paragraphs,
    write_paragraph_sets,
)
from memory3.errors import CorruptFile
from memory3.text.refusal import SENTENCE
from memory_model.data.rows import read_rows
from tests.experiments.small_paragraphs import paragraphs


def test_a_paragraphs_row_holds_its_answer_and_its_distractors_do_not() -> None:
    rows = paragraph_rows(paragraphs("Ulm") + paragraphs("Bern"), 10)
    assert [row["answerable"] for row in rows] == [True] * 6 + [False] * 4
    assert [row["title"] for row in rows[:4]] == ["Ulm", "Bern", "Ulm", "Bern"], "articles take turns"
    for row in rows:
        name = f"Master{row['question'][-2]}"
        assert name in row["knowledge"]
        assert len(set(row["distractors"])) == 4
        assert not any(name in text for text in row["distractors"])
        assert all(row["title"] in text for text in (row["knowledge"], *row["distractors"]))
        assert row["right_answer"] == (name if row["answerable"] else SENTENCE)
        assert row["answers"] == ([f"by {name}"] if row["answerable"] else [])
    assert len(list(read_rows(rows))) == 10
    assert len(paragraph_rows(paragraphs("Ulm"))) == 12
    assert paragraph_rows(paragraphs("Ulm", 4)) == [], "four parts leave no four distractors"


def test_squads_own_form_reads_as_ours(tmp_path: Path) -> None:
    ours = paragraphs("Ulm Minster", 1)
    asked = [
        {
            "question": q["question"],
            "answers": [{"text": a} for a in q["answers"]],
            "plausible_answers": [{"text": a} for a in q.get("plausible", [])],
        }
        for q in ours[0]["questions"]
    ]
    squad = {"data": [{"title": "Ulm_Minster", "paragraphs": [{"context": ours[0]["paragraph"], "qas": asked}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    (tmp_path / "ours.json").write_text(json.dumps(ours))
    first, second = (read_paragraphs(tmp_path / f"{name}.json") for name in ("squad", "ours"))
    assert paragraph_documents(first) == paragraph_documents(second)
    assert first[0]["questions"][1] == second[0]["questions"][1]
    for content in ("{", '{"data": 3}', '[{"article": "A"}]'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(CorruptFile, match=r"bad\.json"):
            read_paragraphs(tmp_path / "bad.json")


def test_an_article_is_in_one_part_only(tmp_path: Path) -> None:
    titles = [f"Article {n}" for n in range(60)]
    (tmp_path / "all.json").write_text(json.dumps([p for t in titles for p in paragraphs(t, 5)]))
    counts = write_paragraph_sets([tmp_path / "all.json"], tmp_path, tmp_path / "new" / "training.json", 20)
    assert counts["squad_dev"] == counts["squad_test"] == 20
    found = {
        "training": json.loads((tmp_path / "new" / "training.json").read_text()),
        **{part: json.loads((tmp_path / f"squad_{part}.json").read_text()) for part in ("dev", "test")},
    }
    for part, rows in found.items():
        assert {part_of(row["title"]) for row in rows} == {part}
    known = {json.loads(line)["text"] for line in (tmp_path / "squad_documents.jsonl").read_text().splitlines()}
    assert {row["knowledge"] for part in ("dev", "test") for row in found[part]} <= known
