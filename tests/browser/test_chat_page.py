"""The page in a real browser, with the real model and a real service, as a day with it would go."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import (
    ANSWER,
    QUESTION,
    answer_without_end,
    ask,
    ask_and_wait,
    last_answer,
    memories,
    set_settings,
    wait_until_answered,
)
from tests.browser.conftest import OpenPage
from tests.browser.day import Day

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

LONG = "Write down the numbers from one to two hundred, one after the other."
HANDBOOK = "Paid leave: 31 days a year\nNotice period: 6 weeks\nOffice: Velmora, 12 Harbour Street\n"


def test_the_suggested_questions_are_answered(open_page: OpenPage) -> None:
    ideas = open_page().locator("#ideas button")
    expect(ideas.first).to_be_visible(timeout=90_000)
    for question in ideas.all_inner_texts():
        page = open_page()
        page.get_by_role("button", name=question).click()
        answer = wait_until_answered(page)
        expect(answer.locator(".note")).to_be_hidden()
        expect(answer.locator(".markdown")).not_to_be_empty()


def test_an_answer_stands_beside_its_memories_and_outlives_a_reload(open_page: OpenPage) -> None:
    page = open_page()
    answer = ask_and_wait(page, QUESTION)
    expect(answer).to_contain_text(ANSWER)
    expect(answer.locator(".sources")).to_have_text("From: Benin")
    panel = memories(page)
    expect(panel.locator("#in-chat-count")).to_have_text("Documents in this chat: 1")
    expect(panel.locator(".chunk").first).to_contain_text("Question")
    row = panel.locator("details.memory").first
    expect(row).to_contain_text("Benin")
    assert 0 < float(row.locator(".score").inner_text()) <= 1
    expect(row.locator(".reference")).to_be_hidden()
    row.locator("summary").click()
    expect(row.locator(".reference")).to_contain_text("Area - total")
    for part in ("tokens/s", "embedding", "service", "decompressing", "decoding stood still for"):
        expect(panel.locator(".times")).to_contain_text(part)
    page.get_by_role("button", name="Again").click()
    wait_until_answered(page)
    expect(panel.locator(".chunk-head .state").first).to_have_text("held")
    page.reload()
    expect(last_answer(page)).to_contain_text(ANSWER)
    expect(panel.locator("details.memory").first).to_contain_text("Benin")
    ask_and_wait(page, "And its climate?", 2)
    expect(page.locator("li.user")).to_have_count(2)


def test_an_answer_is_stopped_asked_again_and_cut_by_a_reload(open_page: OpenPage) -> None:
    page = open_page()
    answer_without_end(page)
    set_settings(page, mode="off", max_tokens="1500")
    ask(page, LONG)
    expect(last_answer(page)).to_have_attribute("data-status", "writing")
    page.keyboard.press("Escape")
    expect(wait_until_answered(page)).to_contain_text("Stopped.")
    page.get_by_role("button", name="Again").click()
    expect(last_answer(page)).to_have_attribute("data-status", "writing")
    expect(page.locator("li.user")).to_have_count(1)
    page.wait_for_timeout(1500)  # what was written is kept every second
    page.reload()
    expect(last_answer(page)).to_contain_text("closed in the middle of this answer")


def test_with_and_without_memory_stand_side_by_side(open_page: OpenPage, picture: Callable[[Page, str], None]) -> None:
    page = open_page()
    page.get_by_label("Compare").check()
    ask_and_wait(page, QUESTION, 2)
    without, with_memory = page.locator("li.compared .answer").all()
    expect(without).to_contain_text("Without memory", ignore_case=True)
    expect(without).not_to_contain_text(ANSWER)
    expect(with_memory).to_contain_text(ANSWER)
    picture(page, "compare")


def test_a_document_is_remembered_on_the_device_and_asked_about_at_once(
    open_page: OpenPage, tmp_path: Path, picture: Callable[[Page, str], None]
) -> None:
    page = open_page()
    handbook = tmp_path / "handbook.md"
    handbook.write_text(HANDBOOK)
    page.get_by_role("button", name="Documents").click()
    expect(page.get_by_role("list", name="Documents of the knowledge base")).to_contain_text("Benin")
    page.locator("#u-files").set_input_files([handbook])
    expect(page.locator("#u-list")).to_contain_text("ready: 1 memory", timeout=90_000)
    picture(page, "upload")
    page.locator("#upload-dialog").get_by_role("button", name="Done").click()
    expect(page.get_by_role("button", name="Also read: mine (on this device)")).to_have_text("+ 1")
    answer = ask_and_wait(page, "How much paid leave does the handbook give?")
    expect(answer).to_contain_text("31 days")
    expect(memories(page).locator("details.memory .key").first).to_have_text("mine: handbook.md")
    panel = memories(page)
    panel.locator("#in-chat-count").click()
    panel.get_by_role("button", name="Ask about handbook").click()
    answer = ask_and_wait(page, "How long is the notice period?", 2)
    expect(answer).to_contain_text("6 weeks")
    expect(page.locator("li.user .said").last).to_contain_text("About handbook")
    page.locator("#about").click()
    page.get_by_role("button", name="Documents").click()
    documents = page.locator("#u-local")
    documents.locator("summary").click()
    documents.get_by_role("button", name="Correct this memory").click()
    picture(page, "correct")
    documents.get_by_label("Text of the memory").fill(HANDBOOK.replace("31", "29"))
    documents.get_by_role("button", name="Save").click()
    expect(documents.locator(".pieces p")).to_contain_text("29 days")
    hostile = tmp_path / "<img src=x onerror=hacked=1>.txt"
    hostile.write_bytes(b"\xff\xfe\x00")
    page.locator("#u-files").set_input_files([hostile])
    expect(page.locator("#u-list .bad")).to_contain_text("Not valid UTF-16")
    expect(page.locator("#u-list img")).to_have_count(0)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete handbook").click()
    expect(page.locator("#u-local li")).to_have_count(0)


def test_another_knowledge_base_is_read_as_well(open_page: OpenPage) -> None:
    page = open_page()
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("group", name="Read as well").get_by_label("firm").check()
    page.locator("#settings-dialog").get_by_role("button", name="Done").click()
    expect(page.get_by_role("button", name="Also read: firm")).to_have_text("+ 1")
    ask_and_wait(page, "When are the quiet hours of the house rules?")
    expect(memories(page).locator("details.memory .key").first).to_have_text("firm: rules")


def test_the_service_dies_in_mid_conversation_and_comes_back(
    open_page: OpenPage, day: Day, picture: Callable[[Page, str], None]
) -> None:
    page = open_page()
    expect(page.locator("#service")).to_have_text("online")
    ask_and_wait(page, QUESTION)
    day.kill_service()
    try:
        answer = ask_and_wait(page, "What is the capital of Benin?", 2)
        expect(answer).to_contain_text("with 1 memory from before")
        page.get_by_role("button", name="New chat").click()
        answer = ask_and_wait(page, QUESTION)
        expect(answer).to_contain_text("Answered from the weights alone")
        expect(answer).not_to_contain_text(ANSWER)
        expect(page.locator("#service")).to_have_text("offline")
        expect(page.locator("#offline")).to_contain_text("until it is back")
        page.mouse.move(700, 30)
        picture(page, "offline")
    finally:
        day.start_service()
    expect(page.locator("#service")).to_have_text("online")
    expect(page.locator("#offline")).to_be_hidden()
    page.get_by_role("button", name="New chat").click()
    answer = ask_and_wait(page, QUESTION)
    expect(answer).to_contain_text(ANSWER)
    expect(answer).not_to_contain_text("weights alone")
