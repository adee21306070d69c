"""By keyboard, by name, in the dark, on a phone; with the pictures that the documents show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import QUESTION, ask_and_wait, memories, question, set_settings
from tests.browser.conftest import OpenPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

TakePicture = Callable[[Page, str], None]
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
# WCAG's contrast of a text with what lies behind it, for every text that is seen.
NAMELESS = (Path(__file__).parent / "nameless.js").read_text()
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()


def filled(open_page: OpenPage, **options: object) -> Page:
    """A page with two answered questions."""
    page = open_page(**options)
    ask_and_wait(page, QUESTION, 1)
    ask_and_wait(page, "Which countries border Benin?", 2)
    return page


def test_everything_is_reached_by_keyboard(open_page: OpenPage) -> None:
    page = open_page()
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
    page.keyboard.press("?")
    expect(page.locator("#help-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help-dialog")).to_be_hidden()
    page.locator("#thread").focus()
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name="Ask. See what it read.")).to_be_visible()
    expect(question(page)).to_be_focused()
    for _ in range(40):  # Tab leads out of everything
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== null")


def test_every_control_has_a_name(open_page: OpenPage) -> None:
    page = filled(open_page)
    nameless = page.evaluate(NAMELESS)
    assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_are_readable_in_light_and_dark(open_page: OpenPage, scheme: str, picture: TakePicture) -> None:
    page = filled(open_page, color_scheme=scheme)
    page.locator("button.bead").first.click()
    memories(page).locator("details.memory summary").first.click()
    memories(page).locator("details.times summary").first.click()
    page.mouse.move(700, 30)
    page.wait_for_timeout(300)  # what moves has come to rest
    picture(page, scheme)
    assert page.evaluate(CONTRAST) == []


def test_the_theme_can_be_chosen_and_stays(open_page: OpenPage) -> None:
    page = open_page(color_scheme="light")
    page.get_by_role("button", name="Light or dark").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_a_phone_shows_one_thing_at_a_time_and_never_scrolls_sideways(
    open_page: OpenPage, picture: TakePicture
) -> None:
    page = filled(open_page, **PHONE)

    def fits() -> None:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    fits()
    picture(page, "phone")
    expect(memories(page)).to_be_hidden()
    page.locator("button.bead").first.tap()
    expect(memories(page)).to_be_visible()
    page.wait_for_timeout(300)
    picture(page, "phone-memories")
    fits()
    page.get_by_role("button", name="Close the memories").tap()
    page.get_by_role("button", name="Conversations", exact=True).tap()
    expect(page.get_by_role("complementary", name="Conversations")).to_be_visible()
    page.get_by_role("button", name="New chat").tap()
    expect(page.get_by_role("heading", name="Ask. See what it read.")).to_be_visible()
    page.get_by_role("button", name="Settings").tap()
    fits()


def test_the_first_sight(open_page: OpenPage, picture: TakePicture, tmp_path: Path) -> None:
    page = open_page()
    expect(page.locator("#service")).to_have_text("online")
    expect(page.locator("#base")).to_have_value("default")
    expect(page.get_by_role("button", name="What is the highest point of Benin?")).to_be_visible()
    picture(page, "start")
