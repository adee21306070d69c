"""The committed question sets are what their names promise, and are made anew from the same documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memory_model.data import factbook
from memory_model.eval.question_sets import (
    KNOWN,
    counterfactual_rows,
    hard_rows,
    holders,
    unanswerable_rows,
)
from memory_model.eval.rows import read_rows
from memory_model.eval.scores import REFUSAL, is_refusal, says

DATA = Path(__file__).resolve().parents[2] / "data"
FIELDS = ("Capital - name", "Coastline", "Airports", "Climate")


def documents(titles: tuple[str, ...]) -> list[dict[str, Any]]:
    """A country's four facts, two references each."""
    return [{"key": t, "title": t, "text": "\n".join(f"{f}: {f[:4]} of {t}" for f in FIELDS)} for t in titles]


def small() -> list[Any]:
    made = documents(("Alpha", "Beta", "Gamma", "Delta", "Epsilon", "Zeta"))
    return holders(made, lambda text: 60 * len(text.splitlines()))


def committed(name: str) -> list[dict[str, Any]]:
    return list(json.loads((DATA / f"{name}.json").read_text()))


def test_hard_distractors_hold_the_asked_field_of_other_countries_with_other_values() -> None:
    rows = hard_rows(small(), 10)
    assert len(rows) == 10
    for row in rows:
        field = next(f for f in FIELDS if f"{f}: {row['right_answer']}" in row["knowledge"])
        assert len(set(row["distractors"])) == 4
        for text in row["distractors"]:
            assert f"{field}: " in text
            assert row["right_answer"] not in text


def test_nothing_that_an_unanswerable_row_reads_answers_it() -> None:
    for row in unanswerable_rows(small(), 10):
        country = next(
            t for t in ("Alpha", "Beta", "Gamma", "Delta", "Epsilon", "Zeta") if t in row["question"]
        )
        field = next(
            f for f in FIELDS
            if any(q.question == row["question"] for q in factbook.questions(country, f"{f}: x")[0])
        )  # fmt: skip
        read = [row["knowledge"], *row["distractors"]]
        assert not any(country in text and f"{field}: " in text for text in read)
        assert any(country in text for text in read)
        assert any(f"{field}: " in text for text in read)


def test_rows_follow_from_the_documents_and_the_seed() -> None:
    assert hard_rows(small(), 5) == hard_rows(small(), 5)
    assert hard_rows(small(), 5, seed=1) != hard_rows(small(), 5)


def test_counterfactual_references_say_what_another_country_is_and_nothing_else_of_the_truth() -> None:
    values = {
        name: {"Capital - name": f"City{n}", "Languages": f"Tongue{n} (official) 90%"}
        for n, name in enumerate(KNOWN[:6])
    }
    made = [
        {
            "key": t,
            "title": t,
            "text": "\n".join(f"{f}: {v}" for f, v in [*of.items(), ("Motto", f"live {of['Capital - name']}")]),
        }
        for t, of in values.items()
    ] + documents(("Alpha", "Beta", "Gamma", "Delta", "Epsilon"))  # fmt: skip
    rows = counterfactual_rows(holders(made, lambda text: 1), 12)
    assert len(rows) == 8  # four of each of the two fields that these countries have
    for row in rows:
        assert not says(row["knowledge"], row["believed_answer"])
        assert says(row["knowledge"], row["right_answer"])
        assert "(" not in row["right_answer"]
        assert not any(says(text, row["believed_answer"]) for text in row["distractors"])


@pytest.mark.parametrize(
    ("name", "count"), [("heldout_hard", 100), ("unanswerable", 60), ("counterfactual", 60)]
)
def test_the_committed_sets_are_whole_and_readable(name: str, count: int) -> None:
    rows = list(read_rows(committed(name)))
    assert len(rows) == count
    for row in rows:
        assert row.distractors is not None
        assert len(row.distractors) == 4
        assert row.answerable == (name != "unanswerable")
        assert bool(row.believed_answer) == (name == "counterfactual")


def test_refusing_is_right_on_every_unanswerable_row() -> None:
    assert {row["right_answer"] for row in committed("unanswerable")} == {REFUSAL}
    assert is_refusal(REFUSAL)


def test_hard_questions_are_about_countries_held_out_of_tuning() -> None:
    titles = {d["title"] for d in json.loads((DATA / "heldout.json").read_text())}
    for row in committed("heldout_hard"):
        assert {t.split("\n")[0] for t in (row["knowledge"], *row["distractors"])} <= titles
