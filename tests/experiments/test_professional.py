"""Memory beside RAG on questions with choices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.professional import DECISIONS, Choice, answered, read_choices
from memory_model.codec.codec import ExactCodec
from memory_model.codec.payload import MemoryFormat
from memory_model.errors import InvalidInput
from memory_model.eval.subject import Subject
from memory_model.nn.generate import answer_nll, prefilled
from tests.edge_client.tiny_bundle import tiny_loaded

TEXT = "Paris is the capital of France"


def test_rows_of_both_kinds_are_read_and_others_refused(tmp_path: Path) -> None:
    medical = {"question": "Does it help?", "contexts": ["A.", "B."], "final_decision": "no"}
    natural = {"question": "Who?", "knowledge": "K.", "right_answer": "Ada", "hallucinated_answer": "Bob"}
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([medical, natural]))
    first, second = read_choices(file)
    assert (first.choices, first.right, first.texts) == (DECISIONS, 1, ("A.", "B."))
    assert (second.choices, second.right, second.texts) == (("Ada", "Bob"), 0, ("K.",))
    file.write_text(json.dumps([{**medical, "final_decision": "perhaps"}]))
    with pytest.raises(InvalidInput, match="row 0"):
        read_choices(file)


@pytest.mark.parametrize("memory", [False, True])
def test_the_likeliest_choice_is_the_answer(memory: bool) -> None:
    loaded = tiny_loaded()
    subject = Subject.of(loaded, MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim)))
    memories = subject.bank.read([[TEXT]]) if memory else None
    prompt = subject.prompt(("" if memory else f"{TEXT}\n\n") + "Which city?")

    def nll(text: str) -> float:
        ids = [*loaded.tokenizer.encode_next(text), loaded.tokenizer.end_of_turn_id]
        return answer_nll(loaded.model, [prompt], [ids], subject.prefix, memories)[0]

    right = int(nll("Paris") > nll("Rome"))
    decisions = prefilled(loaded.model, [prompt], subject.prefix, memories)[1][0]
    decided = max(range(3), key=lambda n: float(decisions[loaded.tokenizer.encode_next(DECISIONS[n])[0]]))
    rows = [
        Choice("Which city?", ("Paris", "Rome"), right, ()), Choice("Which city?", ("Paris", "Rome"), 1 - right, ()),
        Choice("Which city?", DECISIONS, decided, ()),
    ]  # fmt: skip
    found = answered(subject, rows, [[TEXT]] * 3, memory)
    assert found["accuracy"]["mean"] == pytest.approx(2 / 3, abs=1e-3)
    assert found["seconds"]["n"] == 3
