"""`languages` counts notes found and answers right by language."""

import json
from pathlib import Path

import pytest

from experiments.answers.languages import is_right, languages
from memory3.errors import InvalidInput
from memory_model.data.rows import QuestionRow


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("รหัสคือ mango2876", True),
        ("mango 2876", False),
        ("Es kostet 64,50 Euro.", True),
        ("pluv2876", False),
        ("", False),
    ],
)
def test_an_answer_is_right_that_contains_a_right_one(answer: str, right: bool) -> None:
    assert is_right(answer, QuestionRow("k", "q", "mango2876", answers=("64,50 Euro",))) is right


def test_answers_to_other_questions_are_refused(tmp_path: Path) -> None:
    rows, answers = tmp_path / "rows.json", tmp_path / "answers.json"
    rows.write_text(json.dumps([{"language": "Thai", "knowledge": "k", "question": "q", "right_answer": "a"}]))
    answers.write_text(json.dumps({"conditions": {}, "answers": [{"question": "another"}]}))
    with pytest.raises(InvalidInput, match="does not answer"):
        languages(answers, [rows], [], None)
