"""Which line breaks come from a width alone, and which lines are headings."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory3.text.paragraphs import is_heading, unwrapped

OFFER = (
    "We gladly confirm the room with a view of the lake from the fourth to the ninth of September, at 96 euros a night"
    " including breakfast. The option runs out on 28 August, after which the room is offered to other guests, so please"
    " write to Ms Carla Bergmann before that date."
)
KEPT = {
    "verses": "Shall I compare thee to a summer's day, or to the morning\n"
    "And all the rougher winds that shake the buds of May\n"
    "And summer's lease that hath, as all men say, too short a date\n"
    "Sometime too hot the eye of heaven shines",
    "logs": "disk sda1 is at 70 percent of its capacity, which is 20 GB of room\n"
    "disk sda1 is at 71 percent of its capacity, which is 20 GB of room\n"
    "disk sda1 is at 72 percent of its capacity, which is 20 GB of room",
    "label lines": "Background: a town by the river, founded by the monks of the abbey\n"
    "note: the values are of the year 2014 and were estimated by an office\n"
    "source: the registers of the parish, as far as they have been kept so",
    "lists": "- a long-handled spoon of beech wood and some other tools of it\n- a bowl of glass that holds 2 litres of"
    " milk or somewhat more\n- an oven that reaches 250 degrees within fifteen minutes",
    "numbered lists": "1. a long-handled spoon of beech wood and some other tools\n"
    "2. a bowl of glass that holds 2 litres of milk or more\n3. an oven that reaches 250 degrees in some minutes",
    "tables": "alma   the printer on the second floor near the window   10.0.0.7\n"
    "bero   the printer in the cellar that nobody uses today   10.0.0.9\n"
    "cora   the printer of the guests who come on Saturdays   10.0.0.11",
    "addresses": "Carla Bergmann\nMill Lane 8\n12345 Little Town",
    "two notes": "the password of the network for guests is kite-55 and changes\nthe code of the garage is 4711",
    "code": "        answer = reader.first_answer_of(question, memories, limit=5)\n"
    "        return answer if answer is not None else refusal_of(question)\n"
    '    raise InvalidInput(f"{question!r} has no words to search for at all")',
}


@pytest.mark.parametrize("width", [60, 66, 72, 76, 80])
@pytest.mark.parametrize(("indentation", "first"), [("", ""), (" " * 7, ""), ("", "    "), ("  ", "- ")])
def test_lines_of_a_wrapped_paragraph_are_one(width: int, indentation: str, first: str) -> None:
    wrapped = textwrap.fill(
        OFFER, width, initial_indent=indentation[len(first) :] + first, subsequent_indent=indentation
    )
    assert unwrapped(f"{wrapped}\n\nRegards").strip() == f"{first.strip()} {OFFER}\n\nRegards".strip()


@pytest.mark.parametrize("width", [121, 132, 160, 200])
def test_lines_of_a_paragraph_that_was_wrapped_wide_are_one(width: int) -> None:
    paragraph = f"{OFFER} {OFFER} {OFFER}"
    assert unwrapped(f"Rooms\n\n{textwrap.fill(paragraph, width)}\n\nRegards") == f"Rooms\n\n{paragraph}\n\nRegards"


@pytest.mark.parametrize("lines", KEPT.values(), ids=KEPT)
def test_lines_that_are_not_wrapped_stay(lines: str) -> None:
    assert unwrapped(lines) == lines
    assert unwrapped(f"{textwrap.fill(OFFER, 72)}\n\n{lines}") == f"{OFFER}\n\n{lines}"


def test_lines_stay_between_wrapped_ones() -> None:
    wrapped = textwrap.fill(OFFER, 72)
    lines = f"2. Rooms\n{wrapped}\nPrice: 96 euros\nBreakfast: included"
    assert unwrapped(lines) == f"2. Rooms\n{OFFER}\nPrice: 96 euros\nBreakfast: included"


def test_a_break_before_a_capital_goes_where_other_paragraphs_of_the_document_are_as_wide() -> None:
    notice = "The keys of the chalet are kept by our neighbour, whose name is Herr\nBernhard Vogel."
    assert unwrapped(notice) == notice
    assert unwrapped(f"{textwrap.fill(OFFER, 72)}\n\n{notice}") == f"{OFFER}\n\n{notice.replace(chr(10), ' ')}"


def test_a_paragraph_that_hangs_from_a_label_is_one() -> None:
    hanging = textwrap.fill(OFFER, 72, initial_indent="  -o, --offer   ", subsequent_indent=" " * 16)
    assert unwrapped(f"Options\n{hanging}") == f"Options\n  -o, --offer   {OFFER}"


def test_a_word_that_a_hyphen_divides_gets_no_space() -> None:
    divided = (
        f"{textwrap.fill(OFFER, 72)}\nThe owner of our house by the lake, as you may have read, is well-\nknown here."
    )
    assert unwrapped(divided).endswith("as you may have read, is well-known here.")


@given(st.lists(st.text("aB .,:-9\t\r|(=", max_size=70), max_size=9).map("\n".join))
def test_only_white_space_changes(text: str) -> None:
    assert "".join(unwrapped(text).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "line", ["2. Rent", "RENT", "Rent.", "What is the rent?", "The flat costs:", "======", "## Rent", "§ 3 Rent"]
)
def test_a_short_line_above_text_is_a_heading(line: str) -> None:
    assert is_heading(line, "The monthly rent is 745 euros.")
    assert not is_heading(line, "")


@pytest.mark.parametrize(
    "line",
    [
        "Rent: 745 euros",
        "Flat 2.5 a: 745 euros",
        "def rent():",
        "- rent",
        "Mill Lane | 745",
        f"{OFFER[:70]}",
        "The rent is 745 euros.",
    ],
)
def test_facts_items_rows_code_and_sentences_are_no_headings(line: str) -> None:
    assert not is_heading(line, "It is paid monthly.")
