"""Refusals are recognised, and the bias that makes them readier is chosen on questions of both kinds."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.__main__ import app as experiments
from memory3.errors import InvalidInput
from memory3.text.refusal import SENTENCE, Refusal, is_refusal
from memory_model.data.rows import QuestionRow
from memory_model.eval.conditions import Evaluation
from memory_model.eval.refusing import Margin, chosen, curve, margins
from memory_model.eval.subject import Subject
from tests.edge_client.tiny_bundle import tiny_loaded


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (SENTENCE, True),
        ("I don’t know", True),
        ("Sorry, I cannot answer this.", True),
        ("Unknown.", True),
        ("Paris", False),
        ("They don't know.", False),
        ("You don't know.", True),
        ("We do not know.", True),
        ("You don't know the code until Karin gives it to you.", False),
        ("Unknown Soldier Square", False),
        ("I am not sure, but it is 5 May.", False),
        ("I don't know. However, the boat costs 120 crowns.", False),
        ("", False),
        ("I'm sorry, but I don't know.", True),
        ("I am unable to answer that.", True),
        ("I do not have enough information to answer.", True),
        ("This isn't mentioned in the text.", True),
        ("Not specified.", True),
        ("There is no information about this.", True),
        ("There is no information desk.", False),
        ("I'm sorry, but I don't know, but it may cost 5.", False),
        ("Sorry, the museum is closed.", False),
        ("Not mentioned before: dogs.", False),
    ],
)
def test_refusals_are_recognised_by_how_they_begin(answer: str, refused: bool) -> None:
    assert is_refusal(answer, SENTENCE) is refused


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ("Das weiß ich nicht", True),
        ("Das weiß ich nicht, leider.", True),
        ("Das weiß ich nichts", False),
        ("Ja", False),
    ],
)
def test_a_models_own_refusal_is_recognised(answer: str, refused: bool) -> None:
    assert is_refusal(answer, "Das weiß ich nicht.") is refused


@pytest.mark.parametrize(
    "values", [{"sentence": " "}, {"sentence": 3}, {"bias": math.nan}, {"bias": "1"}, {"bias_alone": 101}]
)
def test_a_refusal_that_means_nothing_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="refusal"):
        Refusal(**values)


def test_a_single_memory_has_a_bias_of_its_own() -> None:
    assert [Refusal(bias=2, bias_alone=3).bias_for(read) for read in (0, 1, 2, 5)] == [0, 3, 2, 2]
    assert [Refusal(bias=2).bias_for(read) for read in (0, 1, 5)] == [0, 2, 2]


def test_the_bias_is_as_high_as_all_files_together_permit() -> None:
    answerable = [Margin(m, True) for m in (-9, -7, -5, -1.1)]
    points = curve({"facts": [*answerable, Margin(-3, False)], "prose": [Margin(-3.1, True), Margin(-1, False)]})
    assert [p.bias for p in points[:2]] == [-3, -2.95]
    assert chosen(points, 0.25).bias == 3.1, "at 3.15 two of five are refused"
    assert chosen(points, 0.4).bias == 5
    assert chosen(points, 0).bias == 1.1
    at_3 = next(p for p in points if p.bias == 3)
    assert [(at_3.rightly[n].mean, at_3.wrongly[n].mean) for n in ("facts", "prose")] == [(0, 0.25), (1, 0)]


@pytest.mark.parametrize(("files", "code"), [(["facts", "prose"], 0), ([], 1)])
def test_the_curve_of_every_file_is_drawn(files: list[str], code: int, tmp_path: Path) -> None:
    points = curve({name: [Margin(-n, n > 3) for n in range(8)] for name in files}) if files else []
    found = {"bias_alone": {"chosen": 1, "curve": [asdict(p) for p in points]}, "most_wrong": 0.05}
    (tmp_path / "c").write_text(json.dumps(found))
    command = ["refusal-curve", str(tmp_path / "c"), "--alone", "--out", str(tmp_path / "c.svg")]
    done = CliRunner().invoke(experiments, command)
    assert (done.exit_code, "is not what" in done.output) == (code, not files), (done.output, done.exception)
    assert all(f"<!-- {name} -->" in (tmp_path / "c.svg").read_text() for name in files)


def test_a_question_is_refused_from_its_margin_on() -> None:
    loaded = tiny_loaded()
    rows = [QuestionRow(f"Land{n}\nArea: {n} km", f"Area of Land{n}?", f"{n} km") for n in range(4)]
    for key, distractors in (("bias", 3), ("bias_alone", 0)):
        run = Evaluation(Subject.of(loaded), rows, ["memory"], distractors=distractors)
        for number, question in enumerate(margins(run)):
            for more, begins in ((0.01, True), (-0.01, False)):
                refusal = Refusal(**{"bias": 0, "bias_alone": 0, key: -question.margin + more})
                subject = Subject(run.bank, run.subject.prefix, refusal)
                again = Evaluation(subject, rows, ["memory"], distractors=distractors)
                (answer,) = again.run()["memory"].answers[number : number + 1]
                assert answer.startswith(SENTENCE[0]) is begins
