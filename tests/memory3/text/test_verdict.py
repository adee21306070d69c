"""Which of an answer's words stand in what was read."""

import pytest

from memory3.errors import InvalidInput
from memory3.text.verdict import Grounding, words_found

NOTE = "Router Lyra\nPassword: kite-55. Guests are cut off at 22:00."


@pytest.mark.parametrize(
    ("answer", "found"),
    [("kite-55", 1.0), ("The password of Lyra is Kite-56.", 0.5), ("swordfish", 0.0), ("Lyra", None), ("", None)],
)
def test_words_of_the_question_are_no_evidence(answer: str, found: float | None) -> None:
    assert words_found(answer, "What is the password of Lyra?", [NOTE]) == found


def test_characters_of_scripts_without_spaces_are_words() -> None:
    assert words_found("密码是风筝", "密码是什么？", ["风筝"]) == 1.0


@pytest.mark.parametrize("values", [{"words": 0}, {"words": 1.5}, {"share": -1}, {"share": True}])
def test_thresholds_are_shares(values: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(values))):
        Grounding(**values)
