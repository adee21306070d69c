"""By keyboard, by name, in the dark, on a phone; with the pictures that the documents show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
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
CHUNK = {
    "chunk": 0, "generated": False, "position": 0, "state": "fetched", "error": "", "service_error": "", "kept": 0,
    "query": "What is it?", "blocked_ms": 1,
    "times": {"embed_ms": 1, "call_ms": 2, "server_ms": 1, "decompress_ms": 1, "inject_ms": 1, "queue_ms": 0},
    "read": [{"memory_id": "1", "document_key": "key", "title": "A title", "chunk_number": 0, "score": 0.5,
              "held": True, "refused": "", "text": "A text"}],
}  # fmt: skip
ANSWER = {
    "role": "assistant",
    "content": "# Heading\n\nA [link](https://x.test):\n\n```py\nx = 1  # one\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |",
    "chunks": [CHUNK], "status": "done", "speed": 10,
}  # fmt: skip


def filled(open_page: OpenPage, **options: object) -> Page:
    """A page with two answered questions."""
    page = open_page(**options)
    ask_and_wait(page, QUESTION, 1)
    ask_and_wait(page, "Which countries border Benin?", 2)
    return page


def test_everything_is_reached_by_keyboard(open_small: OpenPage) -> None:
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


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong, best practices included."""
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {node['html'][:200]}" for v in found for node in v["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_wrong(open_small: OpenPage, tmp_path: Path, scheme: str) -> None:
    page = open_small(color_scheme=scheme)
    assert violations(page) == []
    file = tmp_path / "conversation.json"
    file.write_text(json.dumps([{"role": "user", "content": "A question"}, ANSWER]))
    page.locator("#import-file").set_input_files([file])
    memories(page).locator("details.memory summary").click()
    page.wait_for_timeout(300)  # what moves has come to rest
    assert violations(page) == []
    for name in ("Settings", "Documents", "Keys"):
        page.get_by_role("button", name=name, exact=True).click()
        if page.locator("dialog[open]").count():
            assert violations(page) == []
            page.keyboard.press("Escape")


def test_keys_of_one_character_can_be_switched_off(open_small: OpenPage) -> None:
    page = open_small()
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Keys of a single character").uncheck()
    page.keyboard.press("Escape")
    page.locator("#thread").focus()
    page.keyboard.press("/")
    expect(question(page)).not_to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pictures_of_the_documents(open_page: OpenPage, scheme: str, picture: TakePicture) -> None:
    page = filled(open_page, color_scheme=scheme)
    page.locator("button.bead").first.click()
    memories(page).locator("details.memory summary").first.click()
    page.mouse.move(700, 30)
    page.wait_for_timeout(300)  # what moves has come to rest
    picture(page, scheme)
    assert violations(page) == []


def test_the_theme_can_be_chosen_and_stays(open_small: OpenPage) -> None:
    page = open_small(color_scheme="light")
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
    assert page.evaluate("document.querySelector('main').inert")
    expect(page.get_by_role("button", name="Close the memories")).to_be_focused()
    page.get_by_role("button", name="Close the memories").tap()
    expect(page.locator("#show-memories")).to_have_attribute("aria-expanded", "false")
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
    expect(page.get_by_role("button", name="What is known about Benin?")).to_be_visible()
    picture(page, "start")
