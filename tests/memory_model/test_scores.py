"""Answer scores follow SQuAD's normalisation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_model.evaluation.scores import exact_match, token_f1


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


@given(st.text(max_size=40), st.text(max_size=40))
def test_f1_is_symmetric_and_one_for_equal_texts(a: str, b: str) -> None:
    assert token_f1(a, b) == pytest.approx(token_f1(b, a))
    assert token_f1(a, a) == 1.0
    assert 0.0 <= token_f1(a, b) <= 1.0
