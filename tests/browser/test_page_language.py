"""The page in the language of its reader: the browser's, or the one chosen in the settings."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.accessibility import violations
from tests.browser.chat_page import PHONE, citation, import_turns
from tests.browser.conftest import OpenPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

NOTE = "Guests are cut off at 22:00."
ANSWER = "It ends at 22:00."
CITED = [citation(ANSWER, "22:00", NOTE, NOTE)]
# Texts and attributes of the page that have another form in the page's language.
UNTRANSLATED = """async (language) => {
  const { default: words } = await import(`./words/${language}.js`);
  const said = [];
  for (const element of document.body.querySelectorAll("*:not([translate=no], [translate=no] *, noscript)")) {
    for (const name of ["aria-label", "title", "placeholder"]) said.push(element.getAttribute(name));
    for (const node of element.childNodes) if (node.nodeType === Node.TEXT_NODE) said.push(node.data);
  }
  return said.map((text) => text?.trim().replace(/\\s+/g, " ")).filter((text) => words[text] && words[text] !== text);
}"""


def test_a_german_browser_shows_the_page_in_german(open_small: OpenPage) -> None:
    page = open_small(locale="de-DE")
    expect(page.locator("html")).to_have_attribute("lang", "de")
    expect(page.get_by_role("heading", name="Frag und sieh, was gelesen wurde.")).to_be_visible()
    expect(page.locator("#model")).to_contain_text("Tokens")
    import_turns(page, "When?", ANSWER, read=[NOTE], annotations=CITED)
    expect(page.locator(".sources")).to_have_text(f"Aus: {NOTE}")
    expect(page.get_by_role("complementary", name="Gelesene Erinnerungen")).to_contain_text("1 Dokument gelesen.")
    page.locator("details.memory summary").click()
    expect(page.locator(".gave")).to_have_text("Daraus: „22:00“")
    expect(page.locator(".score")).to_have_text("0,50")
    assert page.evaluate(UNTRANSLATED, "de") == []
    assert violations(page) == []


def test_the_language_of_the_settings_goes_before_the_browsers(open_small: OpenPage) -> None:
    page = open_small(locale="de-DE")
    import_turns(page, "When?", ANSWER, read=[NOTE])
    page.get_by_role("button", name="Einstellungen").click()
    page.get_by_label("Sprache").select_option("中文")
    page.get_by_role("button", name="Fertig").click()
    for _ in range(2):
        expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
        expect(page.locator(".sources")).to_have_text(f"已读：{NOTE}")
        assert page.evaluate(UNTRANSLATED, "zh") == []
        page.reload()
    assert violations(page) == []


def test_another_language_waits_for_the_end_of_an_answer(open_small: OpenPage) -> None:
    page = open_small()
    page.route("**/v1/chat/completions", lambda _: None)  # nobody answers
    page.get_by_label("Your question").fill("When?")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Language").select_option("Deutsch")
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".note")).to_have_text("Angehalten.")


def test_other_languages_are_answered_in_english(open_small: OpenPage) -> None:
    page = open_small(locale="fi-FI")
    expect(page.locator("html")).to_have_attribute("lang", "en")
    expect(page.get_by_role("heading", name="Ask. See what it read.")).to_be_visible()


@pytest.mark.parametrize("locale", ["de-DE", "zh-CN"])
def test_long_words_fit_on_a_phone(open_small: OpenPage, locale: str, picture: Callable[[Page, str], None]) -> None:
    page = open_small(locale=locale, **PHONE)

    def fits() -> None:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(
            "[...document.querySelectorAll('header, dialog[open], #memories')]"
            ".every((part) => part.scrollWidth <= part.clientWidth)"
        )

    expect(page.locator("#model")).not_to_be_empty()
    picture(page, f"{locale}-start")
    fits()
    import_turns(page, "When?", ANSWER, read=[NOTE], annotations=CITED)
    picture(page, f"{locale}-answer")
    fits()
    page.locator(".sources").tap()
    page.locator("details.memory summary").tap()
    page.wait_for_timeout(300)
    picture(page, f"{locale}-memories")
    fits()
    page.locator("#memories [data-close]").tap()
    for name in ("settings", "upload"):
        page.locator(f"#{name}").tap()
        picture(page, f"{locale}-{name}")
        fits()
        page.keyboard.press("Escape")
