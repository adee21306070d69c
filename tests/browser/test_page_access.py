"""By keyboard, by name, in the dark, on a phone; with the pictures that the documents show."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.accessibility import violations
from tests.browser.chat_page import PHONE, QUESTION, ask_and_wait, import_turns, memories, question, set_settings
from tests.browser.conftest import OpenPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

TakePicture = Callable[[Page, str], None]
MARKDOWN = "# Heading\n\nA [link](https://x.test):\n\n```py\nx = 1  # one\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |"


def filled(open_page: OpenPage, **options: Any) -> Page:
    """A page with two answered questions."""
    page = open_page(**options)
    ask_and_wait(page, QUESTION, 1)
    ask_and_wait(page, "Which countries border Benin?", 2)
    return page


def test_everything_is_reached_by_keyboard_and_keys_can_be_switched_off(open_small: OpenPage) -> None:
    page = open_small()
    set_settings(page, mode="off", max_tokens="4")
    page.locator("body").click(position={"x": 700, "y": 300})
    page.keyboard.press("/")
    expect(question(page)).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(question(page)).to_have_value("one\ntwo")
    page.keyboard.press("Enter")
    expect(page.locator("li.assistant .answer")).to_have_attribute("aria-busy", "false")
    page.locator("#thread").focus()
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name="Ask. See what it read.")).to_be_visible()
    expect(question(page)).to_be_focused()
    page.locator("#thread").focus()
    page.keyboard.press("?")
    page.get_by_label("Keys of a single character").uncheck()
    page.keyboard.press("Escape")
    expect(page.locator("#help-dialog")).to_be_hidden()
    page.locator("#thread").focus()
    page.keyboard.press("/")
    expect(question(page)).not_to_be_focused()


def test_the_focus_stays_where_it_is_when_what_is_around_it_is_drawn_anew(open_small: OpenPage) -> None:
    page = open_small()
    import_turns(page, "one", "Answer.", title="first")
    import_turns(page, "two", "Answer.", title="second")
    page.once("dialog", lambda dialog: dialog.accept("third"))
    page.get_by_role("button", name="Rename second").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Rename third")).to_be_focused()
    name = page.locator("#list .open", has_text="first")
    name.focus()
    other = open_small(context=page.context)
    import_turns(other, "three", "Answer.", title="another tab's")
    expect(page.locator("#list li")).to_have_count(3)
    expect(name).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_wrong(open_small: OpenPage, scheme: str) -> None:
    page = open_small(color_scheme=scheme)
    assert violations(page) == []
    import_turns(page, "A question", MARKDOWN, read=["A text"])
    memories(page).locator("details.memory summary").click()
    assert violations(page) == []
    for name in ("Settings", "Documents", "Keys"):
        page.get_by_role("button", name=name, exact=True).click()
        assert violations(page) == []
        page.keyboard.press("Escape")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pictures_of_the_documents(open_page: OpenPage, scheme: str, picture: TakePicture) -> None:
    page = open_page(color_scheme=scheme)
    expect(page.locator("#service")).to_have_text("online")
    expect(page.locator("#base")).to_have_value("default")
    expect(page.locator("#ideas button").first).to_be_visible(timeout=90_000)
    if scheme == "light":
        picture(page, "start")
    page = filled(open_page, color_scheme=scheme)
    page.locator(".sources").first.click()
    memories(page).locator("details.memory summary").first.click()
    page.mouse.move(700, 30)
    assert violations(page) == []
    picture(page, scheme)
    if scheme == "light":
        for number, asked in enumerate(("population", "climate", "coastline"), 3):
            ask_and_wait(page, f"What is the {asked} of Benin?", number)
        picture(page, "long")


def test_a_phone_shows_one_thing_at_a_time_and_never_scrolls_sideways(
    open_page: OpenPage, picture: TakePicture
) -> None:
    page = filled(open_page, **PHONE)

    def fits() -> None:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    fits()
    picture(page, "phone")
    expect(memories(page)).to_be_hidden()
    page.locator(".sources").first.tap()
    expect(memories(page)).to_be_visible()
    page.wait_for_timeout(300)
    picture(page, "phone-memories")
    fits()
    assert page.evaluate("document.querySelector('main').inert")
    expect(page.get_by_role("button", name="Close the memories")).to_be_focused()
    page.get_by_role("button", name="Close the memories").tap()
    expect(page.locator("#show-memories")).to_have_attribute("aria-expanded", "false")
    page.get_by_role("button", name="Conversations", exact=True).tap()
    page.get_by_role("button", name="New chat").tap()
    expect(page.get_by_role("heading", name="Ask. See what it read.")).to_be_visible()
    page.get_by_role("button", name="Settings").tap()
    fits()
