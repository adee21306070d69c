"""Memory beside RAG on questions with choices."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.answers.scoring import answer_nll
from experiments.professional import DECISIONS, Choice, answered, draw, read_choices, summary
from memory3.errors import InvalidInput
from memory_model.eval.subject import Subject
from memory_model.nn.generate import prefilled
from tests.edge_client.tiny_bundle import tiny_loaded

TEXT = "Paris is the capital of France"


@pytest.mark.parametrize("label", ["final_decision", "answer"])
def test_rows_of_both_kinds_are_read_and_others_refused(label: str, tmp_path: Path) -> None:
    medical = {"question": "Does it help?", "contexts": ["A.", "B."], label: "no"}
    natural = {"question": "Who?", "knowledge": "K.", "right_answer": "Ada", "hallucinated_answer": "Bob"}
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([medical, natural]))
    first, second = read_choices(file)
    assert (first.choices, first.right, first.texts) == (DECISIONS, 1, ("A.", "B."))
    assert (second.choices, second.right, second.texts) == (("Ada", "Bob"), 0, ("K.",))
    file.write_text(json.dumps([{**medical, label: "perhaps"}]))
    with pytest.raises(InvalidInput, match="row 0"):
        read_choices(file)


@pytest.mark.parametrize("memory", [False, True])
def test_the_likeliest_choice_is_the_answer(memory: bool) -> None:
    loaded = tiny_loaded()
    subject = Subject.of(loaded)
    memories = subject.bank.read([[TEXT]]) if memory else None
    prompt = subject.prompt(("" if memory else f"{TEXT}\n\n") + "Which city?")

    def nll(text: str) -> float:
        ids = [*loaded.tokenizer.encode_next(text), loaded.tokenizer.end_of_turn_id]
        return answer_nll(loaded.model, [prompt], [ids], subject.prefix, memories)[0]

    right = int(nll("Paris") > nll("Rome"))
    decisions = prefilled(loaded.model, [prompt], subject.prefix, memories)[1][0]
    decided = max(range(3), key=lambda n: float(decisions[loaded.tokenizer.encode_next(DECISIONS[n])[0]]))
    choices, ask = ("Paris", "Rome"), "Which city?"
    for row, score in (
        (Choice(ask, choices, right, ()), 1),
        (Choice(ask, choices, 1 - right, ()), 0),
        (Choice(ask, DECISIONS, decided, ()), 1),
    ):
        assert answered(subject, row, [TEXT], memory)[0] == score


def test_the_time_counts_reading_of_memories_and_not_their_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, loaded = [0.0], tiny_loaded()
    subject = Subject.of(loaded)

    def costs(seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        def slower(*given: Any) -> Any:
            clock[0] += seconds * len(given[0])
            return work(*given)

        return slower

    monkeypatch.setattr("time.process_time", lambda: clock[0])
    monkeypatch.setattr(subject.bank.format, "decode", costs(1, subject.bank.format.decode))
    monkeypatch.setattr(subject.loaded.writer, "write", costs(100, subject.loaded.writer.write))
    row = Choice("Which city?", DECISIONS, 0, ())
    assert answered(subject, row, [TEXT, "Rome is the capital of Italy"], memory=True)[1] == 2
    assert answered(subject, row, [TEXT], memory=False)[1] == 0


def test_arms_are_compared_on_the_same_questions_and_drawn(tmp_path: Path) -> None:
    measured = {name: [(0.0, 1.0), (1.0, 2.0)] for name in ("none", "rag_3", "rag_5", "rag_7")}
    found = summary({**measured, "memory": [(1.0, 0.5), (1.0, 0.5)]})
    assert found["rag_3"]["memory_higher"] == {"mean": 0.5, "error": 0.5, "n": 2}
    assert found["memory"]["seconds"] == {"mean": 0.5, "error": 0, "n": 2}
    draw(found, "rows", tmp_path / "rows.svg")
    assert (tmp_path / "rows.svg").read_text().count("LineCollection") >= 6
