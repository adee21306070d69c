"""Scores of citations count what the device itself calls a refusal."""

import pytest

from edge_client.stream import Result, Statistics
from experiments.answers.citations import Cited, summary
from memory_model.data.rows import QuestionRow


@pytest.mark.parametrize("refused", [True, False])
def test_a_refusal_in_the_models_own_sentence_is_no_answer(refused: bool) -> None:
    row, texts = QuestionRow("Area: 4 km", "Area?", "4 km"), ["Area: 4 km"]
    result = Result("Das weiß ich nicht.", "end", Statistics(), without_memory=False, refused=refused)
    found = [Cited.of(row, texts, texts, result)]
    assert bool(summary(found, [row])["answers"]) is not refused
