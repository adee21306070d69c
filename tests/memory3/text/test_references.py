"""Splitting keeps every word, fits the limit, breaks at sentences and names the document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory3.errors import InvalidInput
from memory3.text.references import fitting_title, split, title_line, turn_references


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


@given(st.text(max_size=60), st.integers(8, 40))
def test_a_fitting_title_leaves_room_and_is_the_beginning_of_the_title(title: str, limit: int) -> None:
    fitting = fitting_title(title, len, limit)
    assert len(title_line(fitting)) <= limit * 3 // 4
    assert fitting == title or (len(title_line(title)) > limit * 3 // 4 and title_line(title).startswith(fitting))
    assert all(len(piece) <= limit for piece in split("some words of a text", fitting, len, limit=limit))


@given(st.text(max_size=400), st.integers(8, 40))
def test_nothing_is_lost_and_nothing_is_too_long(text: str, limit: int) -> None:
    pieces = split(text, "T", len, limit=limit)
    assert all(len(piece) <= limit for piece in pieces)
    assert "".join("".join(p.removeprefix("T\n").split()) for p in pieces) == "".join(text.split())


HEADING = "2. Rent"


def test_a_heading_goes_with_the_text_below_it() -> None:
    text = f"The flat has two rooms and a bath.\n{HEADING}\nThe monthly rent is 745 euros."
    below = f"Flat\n{HEADING}\nThe monthly rent is 745 euros."
    assert split(text, "Flat", words, limit=12) == ["Flat\nThe flat has two rooms and a bath.", below]
    assert split(text, "Flat", words, limit=12, overlap=4) == ["Flat\nThe flat has two rooms and a bath.", below]
    assert (
        split(f"Part one\n\nOf flats\n\n{text}", "", words, limit=13)[1] == f"{HEADING}\nThe monthly rent is 745 euros."
    )


def test_headings_of_several_levels_stay_together_and_of_a_list_only_the_last_line_moves() -> None:
    levels = "One two three four five six.\nPart\nChapter\nSection\nSeven eight nine."
    assert split(levels, "", words, limit=9) == [
        "One two three four five six.",
        "Part\nChapter\nSection\nSeven eight nine.",
    ]
    assert split("A\nB\nC\nD\nE f g h.", "", words, limit=6) == ["A\nB\nC", "D\nE f g h."]


@pytest.mark.parametrize(
    "item", ["4. Open day. It is on Saturday, 9 May.", "Attention! The rail is hot and has no cover."]
)
def test_a_short_first_sentence_goes_with_the_rest_of_its_line(item: str) -> None:
    before = "3. Insurance. Karin reports that the premium rises."
    assert split(f"{before}\n{item} Ben bakes waffles.", "", words, limit=12) == [before, f"{item} Ben bakes waffles."]


def test_a_short_first_sentence_moves_only_where_the_next_one_fits_with_it() -> None:
    text = "A b c d.\nE f. G h i j k l."
    assert split(text, "", words, limit=8) == ["A b c d.", "E f. G h i j k l."]
    assert split(text, "", words, limit=7) == ["A b c d.\nE f.", "G h i j k l."]


def test_a_longer_first_sentence_is_no_heading_of_the_second() -> None:
    text = "The rent is due in May. The deposit is due in June."
    assert split(f"A b c.\n{text}", "", words, limit=10)[0] == "A b c.\nThe rent is due in May."


def test_a_question_goes_with_the_next_sentence_of_its_line() -> None:
    text = "We have a car park. May I park behind the house? Only at night. It is free."
    assert split(text, "", words, limit=11) == [
        "We have a car park.",
        "May I park behind the house? Only at night.",
        "It is free.",
    ]


def test_a_sentence_too_long_for_its_heading_is_cut_and_not_the_heading_left() -> None:
    long = " ".join(f"w{n}" for n in range(9))
    assert split(f"A b.\nRent\n{long}", "", words, limit=9) == ["A b.", "Rent\nw0 w1 w2 w3 w4 w5 w6 w7", "w8"]


WIKI = """Torque values.

Stem bolts: 5 Nm

Crank bolts: 40 Nm

Tyre pressure.

City bicycles get 4 bar and tandems get 6 bar.

Tools.

The key of the cellar hangs behind the door."""


def test_a_section_begins_a_reference_once_a_quarter_of_one_is_gathered() -> None:
    assert split(WIKI, "Wiki", words, limit=36) == [
        "Wiki\nTorque values.\nStem bolts: 5 Nm\nCrank bolts: 40 Nm",
        "Wiki\nTyre pressure.\nCity bicycles get 4 bar and tandems get 6 bar.",
        "Wiki\nTools.\nThe key of the cellar hangs behind the door.",
    ]


def test_small_sections_share_a_reference() -> None:
    torque, pressure, tools = split(WIKI, "", words, limit=36)
    assert split(WIKI, "", words, limit=44) == [f"{torque}\n{pressure}", tools]


def test_a_section_repeats_no_more_than_the_overlap_of_the_one_above_it() -> None:
    assert split(WIKI, "", words, limit=36, overlap=5)[1:] == [
        "Crank bolts: 40 Nm\nTyre pressure.\nCity bicycles get 4 bar and tandems get 6 bar.",
        "Tools.\nThe key of the cellar hangs behind the door.",
    ]


def test_short_lines_of_a_list_and_a_question_within_a_line_begin_no_section() -> None:
    recipe = "We need a bowl.\nFlour\nButter\nEggs\nMilk\nMix all of it and bake."
    assert split(recipe, "", words, limit=20) == [recipe]
    asked = "We have a car park. May I park there? Only at night."
    assert split(asked, "", words, limit=16) == [asked]


def test_a_number_at_the_begin_of_a_line_ends_no_sentence() -> None:
    assert split("1. Milk for all. 2. Eggs", "", words, limit=4) == ["1. Milk for all.", "2. Eggs"]
    assert split("One two three.\n12. Rent\nIt is due.", "", words, limit=5) == [
        "One two three.",
        "12. Rent\nIt is due.",
    ]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=6))
def test_no_heading_ends_a_reference_when_text_follows(sections: list[tuple[int, int]]) -> None:
    text = "\n".join("\n".join([HEADING] * above + ["It is due in May."] * below) for above, below in sections)
    pieces = split(text, "", words, limit=14)
    assert not any(piece.endswith(HEADING) for piece in pieces)
    assert " ".join(" ".join(pieces).split()) == " ".join(text.split())


def test_lines_of_a_wrapped_paragraph_are_split_at_sentences_alone() -> None:
    text = (
        "We confirm the room with a view of the lake at 96 euros a night\nincluding breakfast and the use of the"
        " sauna on all days. The\noption runs out on 28 August, after which we offer the room to\nother guests."
    )
    first, second = split(text, "", words, limit=28)
    assert first.endswith("on all days.")
    assert second == "The option runs out on 28 August, after which we offer the room to other guests."


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("灯塔很高。船票很贵！狗留在码头上。", ["灯塔很高。船票很贵！", "狗留在码头上。"]),
        ("「助けて！」と彼は言った。「本当？」「はい。」", ["「助けて！」と彼は言った。", "「本当？」「はい。」"]),
        ("घर हरा है। नाव लाल है।", ["घर हरा है।", "नाव लाल है।"]),
        ("“Go.” Then he left. “So?”", ["“Go.”", "Then he left.", "“So?”"]),
    ],
)
def test_sentences_of_every_script_stay_whole(text: str, expected: list[str]) -> None:
    assert split(text, "", len, limit=16) == expected


def test_a_long_sentence_without_spaces_is_cut_at_its_pauses() -> None:
    assert split("塔高三十二米，由花岗岩砌成，窗朝南", "", len, limit=10) == ["塔高三十二米，", "由花岗岩砌成，窗朝南"]


@pytest.mark.parametrize(
    "question", ["Q: Is the boat free?", "- Is the boat to the lighthouse free?", "船は本当に無料ですか？"]
)
def test_a_question_goes_with_its_answer(question: str) -> None:
    asked = f"{question}\nA: No."
    assert split(f"{asked}\n\n{asked}", "", len, limit=len(asked) + len(question) + 1) == [asked, asked]


def test_a_short_answer_is_no_heading_of_the_next_question() -> None:
    asked = "Is the boat to the lighthouse free of charge?\nNo."
    assert split("\n".join([asked] * 3), "", len, limit=2 * len(asked) + 5) == [asked] * 3
