"""The page as its reader uses it: what tests do and look at, by role and name."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, Page, expect

QUESTION = "What is the total area of Benin?"
ANSWER = "112,622"
ENDLESS = (Path(__file__).parent / "endless.js").read_text()


def question(page: Page) -> Locator:
    return page.get_by_label("Your question")


def ask(page: Page, text: str) -> None:
    question(page).fill(text)
    question(page).press("Enter")


def answer_without_end(page: Page) -> None:
    """Until a reload no answer ends by itself: what stops or leaves one in the midst does not depend on how
    much the model has to say."""
    page.evaluate(ENDLESS)


def answers(page: Page) -> Locator:
    return page.locator("li.assistant .answer")


def last_answer(page: Page) -> Locator:
    return answers(page).last


def wait_until_answered(page: Page, number: int = 1) -> Locator:
    """The answer of that number, complete."""
    answer = answers(page).nth(number - 1)
    expect(answer).to_have_attribute("aria-busy", "false", timeout=90_000)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    return answer


def ask_and_wait(page: Page, text: str, number: int = 1) -> Locator:
    ask(page, text)
    return wait_until_answered(page, number)


def memories(page: Page) -> Locator:
    return page.get_by_role("complementary", name="Memories read")


def set_settings(page: Page, **values: str) -> None:
    """Set fields of the settings' dialog by their names."""
    page.get_by_role("button", name="Settings").click()
    for name, value in values.items():
        field = page.locator(f"#s-{name}")
        if name == "mode":
            field.select_option(value)
        else:
            field.fill(value)
    page.locator("#settings-dialog").get_by_role("button", name="Done").click()
