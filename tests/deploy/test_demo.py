"""The demo says of each answer whether it is right."""

import io
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from deploy import demo
from memory3.text.refusal import SENTENCE

HEIGHT = demo.DemoQuestion("How high is it?", "Mont Sokbaro 658 m")
PRICE = demo.DemoQuestion("What does it cost?", "120 crowns; children go free")
QUAY = demo.DemoQuestion("Where?", "on the quay", "quay")
NOTHING = demo.DemoQuestion("How high is the tower?", SENTENCE)


def answer(text: str, *, refused: bool = False) -> dict[str, Any]:
    memory = {"memory_id": "1", "title": "T", "chunk_number": 0, "score": 0.5, "refused": ""}
    return {"answer": text, "refused": refused, "memories": [{"read": [memory]}], "statistics": {"tokens_per_s": 9.0}}


@pytest.mark.parametrize(
    ("question", "text", "refused", "right"),
    [
        (HEIGHT, "It is Mont Sokbaro, 658 m.", False, True),
        (HEIGHT, "It is Mont Sokbaro, 65 m.", False, False),
        (PRICE, "120 crowns", False, True),
        (PRICE, "1120 crowns", False, False),
        (QUAY, "You leave it on the quay.", False, True),
        (NOTHING, SENTENCE, True, True),
        (NOTHING, "It is 12 meters high.", False, False),
        (QUAY, SENTENCE, True, False),
    ],
)
def test_an_answer_is_right_if_it_has_what_the_documents_say(
    question: demo.DemoQuestion, text: str, refused: bool, right: bool
) -> None:
    assert question.answered_by(answer(text, refused=refused)) is right


def test_the_demo_reads_nothing_that_the_user_remembers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "WORK", tmp_path / "demo")
    for name in ("ensure", "run", "ServiceProcess", "EdgeModel", "ask_both_ways"):
        monkeypatch.setattr(demo, name, MagicMock())
    demo.run_walk(tmp_path, demo.TINY, full=False)
    assert demo.EdgeModel.open.call_args.kwargs["local"] == tmp_path / "demo" / "local"  # type: ignore[attr-defined]


def test_the_table_marks_each_answer_and_counts_those_that_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "console", console := Console(width=200, record=True, file=io.StringIO()))
    walk = demo.Walk("Title", demo.PAGE, (PRICE, NOTHING))
    pairs = [("10 crowns", "120 crowns"), ("It is 9 m.", "It is 8 m.")]
    results = [{"without_memory": answer(without), "with_memory": answer(with_)} for without, with_ in pairs]
    demo.show(walk, results)
    shown = console.export_text()
    assert "wrong: 10 crowns" in shown
    assert "right: 120 crowns" in shown
    assert "without memory: 0 of 2 right" in shown
    assert "with memory: 1 of 2 right" in shown
