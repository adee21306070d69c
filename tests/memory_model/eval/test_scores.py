"""Answer scores follow SQuAD's normalisation."""

from __future__ import annotations

import pytest

from memory_model.eval.scores import exact_match, token_f1


@pytest.mark.parametrize(
    ("answer", "right", "same", "f1"),
    [
        ("The  Eiffel Tower.", "eiffel tower", 1.0, 1.0),
        ("28,748 sq km", "28748 sq. km", 1.0, 1.0),
        ("red and blue", "blue", 0.0, 0.5),
        ("no", "yes", 0.0, 0.0),
        ("", "", 1.0, 1.0),
        ("", "yes", 0.0, 0.0),
    ],
)
def test_scores_of_known_answers(answer: str, right: str, same: float, f1: float) -> None:
    assert exact_match(answer, right) == same
    assert token_f1(answer, right) == pytest.approx(f1)
