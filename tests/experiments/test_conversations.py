"""Follow-ups beside the same questions in full: on a device that remembers, asked turn by turn."""

import json
from pathlib import Path

import pytest

from experiments.answers.conversations import Answered, Reply, conversations, open_conversations, show
from experiments.follow_ups import ITEMS_OF_A_LIST, NAMES, follow_ups
from memory3.errors import InvalidInput
from memory_model.terminal import console
from tests.edge_client.tiny_bundle import tiny_bundle

ROW = {
    "before": ["Who is it?"],
    "question": "And when?",
    "in_full": "When is Bo?",
    "knowledge": "Bo\nBo is at 3.",
    "right_answer": "3",
}


def test_a_row_without_its_question_in_full_is_refused_by_number(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps([ROW, {k: v for k, v in ROW.items() if k != "in_full"}]))
    with pytest.raises(InvalidInput, match=r"c\.json, row 2: .*required.*in_full"):
        open_conversations(tmp_path / "c.json")


def test_follow_ups_count_among_those_that_are_right_in_full() -> None:
    said = {right: Reply("3" if right else "4", right, False, True) for right in (True, False)}
    pairs = [(True, True), (False, True), (True, False), (False, False)]
    found = [Answered((), "And when?", "When is Bo?", "3", said[a], said[b]) for a, b in pairs]
    with console.capture() as captured:
        show(found, "tiny", Path("c.json"))
    assert "of those right in full: 0.500 ± 0.500 of 2" in " ".join(captured.get().split())


def test_each_text_is_remembered_and_both_ways_of_asking_read_it(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps([ROW, {**ROW, "before": ["Who?", "Where?"]}]))
    conversations(tmp_path / "c.json", tiny_bundle(tmp_path).folder, tmp_path / "out.json", max_tokens=2)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["before"] for row in rows] == [["Who is it?"], ["Who?", "Where?"]]
    assert all(row[way]["right_read"] for row in rows for way in ("follow_up", "full"))


def test_the_price_of_a_list_is_the_right_answer_of_its_conversations(tmp_path: Path) -> None:
    follow_ups(write=tmp_path / "lists.json")
    rows = open_conversations(tmp_path / "lists.json")
    assert {row.knowledge.partition("\n")[0] for row, _ in rows} == set(NAMES)
    for row, turns in rows:
        name, *lines = row.knowledge.splitlines()
        prices = dict(line.split(": ") for line in lines)
        assert len(prices) == ITEMS_OF_A_LIST
        item = row.question.removeprefix("What about the ").removesuffix("?").capitalize()
        assert row.right_answer == prices[item]
        assert name in turns.in_full
        assert name in turns.before[0] + turns.before[-1]
