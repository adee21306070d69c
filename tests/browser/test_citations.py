"""A part of an answer shows the passage that it was read from, to the mouse, a finger and the keyboard."""

import pytest
from playwright.sync_api import expect

from tests.browser.accessibility import violations
from tests.browser.chat_page import citation, import_turns, memories
from tests.browser.conftest import OpenPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

NOTE = "Router Lyra. 🎉 Guests are cut off at 22:00. Installed by Miro."
ANSWER = "🎉 It ends at **22:00**, says `Miro` & [more](https://x.test)."
CITED = [
    citation(ANSWER, "22:00", NOTE, "Guests are cut off at 22:00."),
    citation(ANSWER, "Miro", NOTE, "Installed by Miro."),
]


def test_a_part_of_an_answer_shows_its_passage_with_the_sentence_marked(open_small: OpenPage) -> None:
    page = open_small()
    import_turns(page, "When?", ANSWER, read=[NOTE], annotations=CITED)
    cited, box = page.locator(".cited"), page.get_by_role("tooltip")
    expect(cited).to_have_text(["22:00", "Miro"])
    expect(box).to_be_hidden()
    cited.first.hover()
    expect(box).to_contain_text(NOTE)
    expect(box.locator("mark")).to_have_text("Guests are cut off at 22:00.")
    assert violations(page) == []
    page.mouse.move(5, 5)
    expect(box).to_be_hidden()
    cited.nth(1).focus()
    expect(box.locator("mark")).to_have_text("Installed by Miro.")
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()
    cited.first.click()
    expect(box).to_be_visible()


def test_a_memory_shows_what_it_gave(open_small: OpenPage) -> None:
    page = open_small()
    import_turns(page, "When?", ANSWER, read=[NOTE], annotations=CITED)
    row = memories(page).locator("details.memory").first
    row.locator("summary").click()
    expect(row.locator(".gave")).to_have_text("Gave “22:00”, “Miro”")
    expect(row.locator(".reference mark")).to_have_text("Guests are cut off at 22:00.")


def test_times_are_shown_to_those_who_press_them(open_small: OpenPage) -> None:
    page = open_small()
    import_turns(page, "When?", ANSWER, read=[NOTE])
    panel = memories(page)
    for part in ("10 tokens/s", "decompressing 1.0"):
        expect(panel.get_by_text(part)).to_be_hidden()
    panel.get_by_text("Times").click()
    expect(panel.get_by_text("10 tokens/s")).to_be_visible()
    expect(panel.get_by_text("Question embedding 1.0, network 1.0, service 1.0, decompressing 1.0 ms")).to_be_visible()
    assert violations(page) == []


def test_annotations_of_another_program_do_no_harm(open_small: OpenPage) -> None:
    page = open_small()
    odd = [
        None,
        1,
        {"text": "x"},
        {"text": "22:00", "file_citation": {"file_id": "0", "passage": 3}, "start_index": -9},
    ]
    import_turns(page, "When?", ANSWER, read=[NOTE], annotations=odd)
    expect(page.locator("#messages .markdown")).to_contain_text("22:00")
