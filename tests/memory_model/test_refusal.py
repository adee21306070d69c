"""Refusals are recognised, and the bias that makes them readier is chosen on questions of both kinds."""

import math

import pytest

from memory_model.data.rows import Row
from memory_model.errors import InvalidInput
from memory_model.eval.conditions import Evaluation
from memory_model.eval.refusing import Question, chosen, curve, margins
from memory_model.eval.subject import Subject
from memory_model.refusal import SENTENCE, Refusal, is_refusal
from tests.edge_client.tiny_bundle import tiny_loaded


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (SENTENCE, True), ("I don’t know", True), ("Sorry, I cannot answer this.", True), ("Unknown.", True),
        ("Paris", False), ("They don't know.", False), ("Unknown Soldier Square", False), ("", False),
    ],
)  # fmt: skip
def test_refusals_are_recognised_by_how_they_begin(answer: str, refused: bool) -> None:
    assert is_refusal(answer) is refused


@pytest.mark.parametrize(
    "values", [{"sentence": " "}, {"sentence": 3}, {"bias": math.nan}, {"bias": "1"}, {"bias": 101}]
)
def test_a_refusal_that_means_nothing_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="refusal"):
        Refusal(**values)


def test_the_bias_is_as_high_as_every_file_permits() -> None:
    answerable = [Question(m, True) for m in (-9, -7, -5, -1.1)]
    points = curve({"facts": [*answerable, Question(-3, False)], "prose": [Question(-3.1, True), Question(-1, False)]})
    assert [p.bias for p in points[:2]] == [-3, -2.75]
    assert chosen(points, 0.25).bias == 3, "at 3.25 every answerable question of prose is refused"
    assert chosen(points, 0).bias == 1
    at_3 = next(p for p in points if p.bias == 3)
    assert (at_3.rightly["facts"].mean, at_3.wrongly["facts"].mean) == (0, 0.25)
    assert (at_3.rightly["prose"].mean, at_3.wrongly["prose"].mean) == (1, 0)
    with pytest.raises(InvalidInput, match="nothing answers"):
        curve({"facts": answerable})


def test_a_question_is_refused_from_its_margin_on() -> None:
    loaded = tiny_loaded()
    rows = [Row(f"Land{n}\nArea: {n} km", f"Area of Land{n}?", f"{n} km") for n in range(4)]
    run = Evaluation(Subject.of(loaded), rows, ["memory"])
    for number, question in enumerate(margins(run)):
        for more, begins in ((0.01, True), (-0.01, False)):
            refusal = Refusal(bias=-question.margin + more)
            subject = Subject(run.bank, run.subject.prefix, refusal)
            (answer,) = Evaluation(subject, rows, ["memory"]).run()["memory"].answers[number : number + 1]
            assert answer.startswith(SENTENCE[0]) is begins
