"""Splitting keeps every word, fits the limit, breaks at sentences and names the document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory3.errors import InvalidInput
from memory3.text.references import split, turn_references


def words(text: str) -> int:
    return len(text.split())


def test_sentences_stay_whole_and_carry_the_title() -> None:
    text = "One two three. Four five six. Seven eight nine ten."
    assert split(text, "Doc", words, limit=8) == ["Doc\nOne two three. Four five six.", "Doc\nSeven eight nine ten."]


def test_line_breaks_are_kept_and_decimals_do_not_end_a_sentence() -> None:
    assert split("Area: 1.5 sq. km\nCoast: 3.2 km", "", words, limit=20) == ["Area: 1.5 sq. km\nCoast: 3.2 km"]


def test_a_sentence_longer_than_a_reference_is_cut_at_spaces() -> None:
    pieces = split(" ".join(f"w{i}" for i in range(25)), "T", words, limit=10)
    assert [words(p) for p in pieces] == [10, 10, 8]


def test_a_title_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(InvalidInput, match="title"):
        split("text", "a b c d e f g h i", words, limit=10)


@given(st.text(max_size=400), st.integers(8, 40))
def test_nothing_is_lost_and_nothing_is_too_long(text: str, limit: int) -> None:
    pieces = split(text, "T", len, limit=limit)
    assert all(len(piece) <= limit for piece in pieces)
    assert "".join("".join(p.removeprefix("T\n").split()) for p in pieces) == "".join(text.split())


def test_an_overlap_repeats_whole_sentences_but_no_sentence_is_lost() -> None:
    text = "A a a. B b b. C c c. D d d."
    assert split(text, "", words, limit=7, overlap=3) == ["A a a. B b b.", "B b b. C c c.", "C c c. D d d."]
    assert split("A a. B b b b b b b b.", "", words, limit=8, overlap=4) == ["A a.", "B b b b b b b b."]
    with pytest.raises(InvalidInput, match="overlap"):
        split(text, "", words, limit=7, overlap=4)


def test_remembered_turns_share_references_and_each_part_names_its_speaker() -> None:
    turns = [("user", "My sister is Anna."), ("assistant", "Good to know!"), ("user", "She is five. She likes red.")]
    assert turn_references(turns, words, limit=10) == [
        "User: My sister is Anna.\nAssistant: Good to know!",
        "User: She is five. She likes red.",
    ]
    assert turn_references(turns[2:], words, limit=5) == ["User: She is five.", "User: She likes red."]
    assert turn_references([("user", " ")], words) == []
