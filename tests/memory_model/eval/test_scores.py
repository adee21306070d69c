"""Answer scores follow SQuAD's normalisation; values are compared letter for letter; refusals are recognised."""

from __future__ import annotations

import pytest

from memory_model.eval.scores import (
    exact_match,
    exact_values,
    token_f1,
    values,
)


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


def test_values_are_numbers_with_their_separators_and_capitalised_words() -> None:
    assert values("Independence Day, 4 July 1776; about 28,748 sq km (4.5%), est. 2010-15") == [
        "Independence", "Day", "4", "July", "1776", "28,748", "4.5", "2010-15",
    ]  # fmt: skip
    assert values("no value here") == []


@pytest.mark.parametrize(
    ("answer", "right", "share"),
    [
        ("It is 28,748 sq km.", "28,748 sq km", 1.0),
        ("128,748 sq km", "28,748 sq km", 0.0),  # another number that merely ends alike
        ("28748 sq km", "28,748 sq km", 0.0),
        ("4 July", "Independence Day, 4 July", 0.5),
        ("12 and 12", "12 nm, 12 km", 1.0),
        ("12 nm", "12 nm, 12 km", 0.5),
        ("textiles", "food processing", None),
    ],
)
def test_shares_of_exact_values(answer: str, right: str, share: float | None) -> None:
    assert exact_values(answer, right) == share
