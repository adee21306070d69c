"""Conversations on the page: versions, names, search, files, several at once, and what happens when storage fails."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from testing.processes import AppProcess
from tests.browser.chat_page import (
    answer_without_end,
    answers,
    ask,
    ask_and_wait,
    chunk_of,
    import_messages,
    import_turns,
    question,
    set_settings,
    wait_until_answered,
)
from tests.browser.conftest import OpenPage, pages
from tests.edge_client.tiny_bundle import tiny_bundle

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


def short(open_small: OpenPage, **options: object) -> Page:
    """A page whose answers are short and read no memories."""
    page = open_small(**options)
    set_settings(page, mode="off", max_tokens="6")
    return page


def expect_said(page: Page, *texts: str) -> None:
    expect(page.locator("li.user .said")).to_have_text([*texts])


def test_an_edited_question_and_another_answer_are_versions_beside_the_first(open_small: OpenPage) -> None:
    page = short(open_small)
    ask_and_wait(page, "first", 1)
    ask_and_wait(page, "second", 2)
    page.locator("li.user").first.hover()
    page.get_by_role("button", name="Edit the question").first.click()
    expect(question(page)).to_have_value("first")
    ask_and_wait(page, "changed", 1)
    expect_said(page, "changed")
    page.get_by_role("button", name="Version before").click()
    expect_said(page, "first", "second")
    page.get_by_role("button", name="Again").click()
    wait_until_answered(page, 2)
    expect(page.locator("li.assistant .turner")).to_have_text("2/2")
    page.reload()
    expect_said(page, "first", "second")
    page.get_by_role("button", name="Next version").first.click()
    expect_said(page, "changed")


def test_what_is_typed_is_not_lost_to_an_edited_question_a_suggestion_or_a_reload(open_small: OpenPage) -> None:
    page = open_small()
    page.route("**/v1/suggestions*", lambda route: route.fulfill(json={"data": ["What is it?"]}))
    answer_with(page, None, ["one"])
    page.reload()
    question(page).fill("half a thought")
    page.get_by_role("button", name="What is it?").click()
    wait_until_answered(page)
    expect_said(page, "What is it?")
    page.locator("li.user").hover()
    page.get_by_role("button", name="Edit the question").click()
    expect(question(page)).to_have_value("What is it?")
    question(page).press("Escape")
    expect(question(page)).to_have_value("half a thought")
    page.get_by_role("button", name="Edit the question").click()
    question(page).press("Enter")
    wait_until_answered(page)
    expect(page.locator("li.user .turner")).to_have_text("2/2")
    page.reload()
    expect(question(page)).to_have_value("half a thought")
    question(page).press("Enter")
    wait_until_answered(page, 2)
    page.reload()
    expect(question(page)).to_have_value("")


def test_a_double_click_on_send_does_not_stop_the_answer(open_small: OpenPage) -> None:
    page = short(open_small)
    held: list[Route] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    question(page).fill("hello")
    page.get_by_role("button", name="Send").dblclick()
    expect(answers(page)).to_have_attribute("data-status", "waiting")
    page.get_by_role("button", name="Stop").click()
    expect(answers(page).locator(".note")).to_have_text("Stopped.")


def test_a_cut_answer_goes_on_where_it_ended(open_small: OpenPage) -> None:
    page = short(open_small)
    answer = ask_and_wait(page, "speak")
    expect(answer.locator(".note")).to_contain_text("Continue")
    begun = answer.locator(".markdown").inner_text()
    page.get_by_role("button", name="Continue").click()
    answer = wait_until_answered(page)
    expect(page.locator("li.assistant")).to_have_count(1)
    assert len(answer.locator(".markdown").inner_text()) > len(begun)


@pytest.mark.parametrize(
    ("verdict", "read", "sources", "says"),
    [
        ("grounded", ["one"], "From: one", ""),
        ("from_the_model", ["one"], "Read: one", "the model's own words"),
        ("not_in_what_was_read", ["one"], "Read: one", "found no answer in what it read"),
        ("nothing_found", [], "", "Nothing near the question was found"),
        (None, ["one"], "Read: one", ""),
    ],
)
def test_below_an_answer_stands_in_one_line_what_it_rests_on(
    open_small: OpenPage, verdict: str | None, read: list[str], sources: str, says: str
) -> None:
    page = open_small()
    answer_with(page, verdict, read)
    answer = ask_and_wait(page, "What is it?")
    expect(answer.locator(".sources")).to_have_text(sources)
    note = answer.locator(".note")
    expect(note).to_contain_text(says) if says else expect(note).to_be_hidden()


def test_an_answer_without_the_memories_of_the_service_says_why(open_small: OpenPage) -> None:
    page = open_small()
    answer_with(page, "not_in_what_was_read", ["one"], "ACCESS_REFUSED: the service refused the key")
    note = ask_and_wait(page, "What is it?").locator(".note")
    expect(note).to_have_text("Not all memories could be had: The service refused the key.")
    page = open_small()
    answer_with(page, "from_the_model", ["one"], "UNREACHABLE: no service at 127.0.0.1:1")
    note = ask_and_wait(page, "What is it?").locator(".note")
    expect(note).to_contain_text("The service did not answer; read from this device. These are the model's own words")


def answer_with(page: Page, verdict: str | None, read: list[str], error: str = "") -> None:
    """Have every question answered so."""
    outcome = {"without_memory": False, "error": error, "refused": False, "verdict": verdict}
    event = {
        "choices": [{"delta": {"content": "I don't know."}, "finish_reason": "stop"}],
        "memory": {"chunks": [chunk_of("x", read)], **outcome},
        "timings": {"tokens_per_s": 5, "first_token_ms": 1, "recall_ms": 1},
    }
    sent = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=sent, content_type="text/event-stream"))


def test_again_redoes_each_half_of_a_comparison_that_holds_nothing(open_small: OpenPage) -> None:
    page = open_small()
    answer_with(page, None, ["one"])
    asked: list[str] = []
    failing = {"off", "exact"}

    def refuse(route: Route) -> None:
        asked.append(route.request.post_data_json["memory"]["mode"])
        if asked[-1] in failing:
            route.fulfill(status=503, json={"error": {"message": "no room"}})
        else:
            route.fallback()

    page.route("**/v1/chat/completions", refuse)
    set_settings(page, mode="exact")
    page.get_by_label("Compare").check()
    ask_and_wait(page, "What is it?")
    without, with_memory = page.locator("li.compared .answer").all()
    expect(without.locator(".note")).to_contain_text("No room")
    expect(with_memory.locator(".note")).to_contain_text("No room")
    failing.remove("off")
    page.get_by_role("button", name="Again").click()
    wait_until_answered(page)
    expect(without.locator(".markdown")).to_have_text("I don't know.")
    expect(without.locator(".note")).to_be_hidden()
    expect(with_memory.locator(".note")).to_contain_text("No room")
    failing.clear()
    page.get_by_role("button", name="Again").click()
    wait_until_answered(page)
    expect(with_memory.locator(".markdown")).to_have_text("I don't know.")
    assert asked == ["off", "exact", "off", "exact", "exact"], "a half that holds an answer is not asked again"


def test_a_comparison_that_goes_on_asks_its_failed_half_without_the_answer_so_far(open_small: OpenPage) -> None:
    page = open_small()
    answer_with(page, None, ["one"])
    asked: list[dict[str, object]] = []
    page.on("request", lambda r: r.url.endswith("/completions") and asked.append(r.post_data_json))
    failed = {"content": "", "status": "failed", "error": "no room", "chunks": []}
    messages = [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "It is", "status": "cut", "plain": failed},
    ]
    import_messages(page, messages)
    page.get_by_role("button", name="Continue").click()
    wait_until_answered(page)
    expect(answers(page).locator(".markdown")).to_have_text(["I don't know.", "It isI don't know."])
    said = [[message["content"] for message in body["messages"]] for body in asked]  # type: ignore[attr-defined]
    assert said == [["What is it?"], ["What is it?", "It is"]]


def test_an_answer_that_found_nothing_says_which_files_were_not_read_yet(open_small: OpenPage) -> None:
    page = open_small()
    answer_with(page, "not_in_what_was_read", ["one"])
    held: list[Route] = []
    page.route("**/v1/local?key=*", lambda route: held.append(route))
    files = [{"name": f"{n}.md", "mimeType": "text/markdown", "buffer": b"Lamp: Ida."} for n in range(2)]
    page.get_by_role("button", name="Documents").click()
    page.locator("#u-files").set_input_files(files)
    page.locator("#upload-dialog").get_by_role("button", name="Done").click()
    note = ask_and_wait(page, "Who has the lamp?").locator(".note")
    expect(note).to_have_text("2 added files were not read yet when this was asked: ask again when all are ready.")
    page.unroute("**/v1/local?key=*")
    held[0].continue_()
    page.get_by_role("button", name="Documents").click()
    expect(page.locator("#u-list .good")).to_have_count(2, timeout=90_000)
    page.locator("#upload-dialog").get_by_role("button", name="Done").click()
    note = ask_and_wait(page, "Who has the lamp?", 2).locator(".note")
    expect(note).to_contain_text("found no answer in what it read")


def test_below_an_answer_stand_the_documents_it_was_read_from_those_that_gave_most_first(open_small: OpenPage) -> None:
    page = open_small()
    cited = [
        {"type": "file_citation", "text": text, "start_index": start, "end_index": start + len(text)}
        | {"file_citation": {"file_id": "0", "filename": name, "passage": None, "score": score, "quote": None}}
        for text, start, name, score in (("It", 0, "a, b.md", 0.9), ("is blue", 3, "c.pdf, page 2", 0.3))
    ]
    import_turns(page, "What?", "It is blue", read=["d.md"], annotations=cited)
    expect(page.locator(".sources")).to_have_text("From: c.pdf, page 2; a, b.md")


def test_documents_that_are_called_alike_are_told_apart_below_an_answer(open_small: OpenPage) -> None:
    page = open_small()
    chunk = chunk_of("How long?", ["handbook"])
    (one,) = chunk["read"]  # type: ignore[misc]
    for other, expected in (
        ({"knowledge_base": "mine"}, "Read: firm: handbook; mine: handbook"),
        (
            {"knowledge_base": "firm", "document_key": "/old/handbook.md"},
            "Read: firm: handbook; firm: /old/handbook.md",
        ),
        ({"knowledge_base": "firm", "document_key": "handbook#page=2"}, "Read: handbook"),
    ):
        read = [{**one, "knowledge_base": "firm"}, {**one, "memory_id": "1", **other}]
        answer = {"role": "assistant", "content": "Six weeks.", "chunks": [{**chunk, "read": read}]}
        import_messages(page, [{"role": "user", "content": "How long?"}, answer])
        expect(page.locator(".sources")).to_have_text(expected)


def test_only_documents_and_a_document_go_with_the_request(open_small: OpenPage) -> None:
    page = open_small()
    bodies: list[dict[str, dict[str, object]]] = []
    page.on("request", lambda r: r.url.endswith("/completions") and bodies.append(r.post_data_json))
    set_settings(page, max_tokens="2")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Only from my documents").check()
    page.locator("#settings-dialog").get_by_role("button", name="Done").click()
    ask_and_wait(page, "one")
    assert bodies[-1]["memory"]["only_documents"] is True
    set_settings(page, mode="off")
    ask_and_wait(page, "two", 2)
    assert "only_documents" not in bodies[-1]["memory"], "nothing is read then"


def test_conversations_are_renamed_and_found_by_what_was_said(open_small: OpenPage) -> None:
    page = short(open_small)
    for text in ("about rivers", "about hills"):
        ask_and_wait(page, text)
        page.get_by_role("button", name="New chat").click()
    expect(page.locator("#list li")).to_have_count(2)
    page.get_by_label("Search the conversations").fill("RIVERS about")
    expect(page.locator("#list li")).to_have_count(1)
    page.locator("#list li").hover()
    page.once("dialog", lambda dialog: dialog.accept("Water"))
    page.get_by_role("button", name="Rename about rivers").click()
    expect(page.locator("#list .open")).to_have_text("Water")


def test_back_leads_to_the_conversation_before_and_past_a_deleted_one(open_small: OpenPage) -> None:
    page = short(open_small)
    ask_and_wait(page, "first")
    page.get_by_role("button", name="New chat").click()
    ask_and_wait(page, "second")
    page.locator("#list").get_by_role("button", name="first", exact=True).click()
    expect_said(page, "first")
    page.go_back()
    expect_said(page, "second")
    page.go_back()
    expect_said(page, "first")
    page.go_forward()
    expect_said(page, "second")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete first").click()
    page.go_back()
    expect(page.locator("#list .current")).to_have_text("second")
    expect_said(page, "second")
    assert page.evaluate("location.hash"), "a reload shows it again"


def test_an_export_is_imported_with_its_versions_and_what_is_none_is_refused(
    open_small: OpenPage, tmp_path: Path
) -> None:
    page = short(open_small)
    ask_and_wait(page, "keep this")
    page.get_by_role("button", name="Again").click()
    wait_until_answered(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export keep this").click()
    kept = json.loads(download.value.path().read_text())
    assert [m["role"] for m in kept["messages"]] == ["user", "assistant", "assistant"]
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete keep this").click()
    expect(page.locator("#list li")).to_have_count(0)
    page.locator("#import-file").set_input_files([download.value.path()])
    expect(page.locator("li.assistant .turner")).to_have_text("2/2")
    broken = tmp_path / "broken.json"
    for content, said in (
        ('{"messages": [{"role": "king"}]}', "Message 1 of the file"),
        ("[null]", "Message 1 of the file"),
        ("hello", "The file holds no messages"),
        ('{"messages": "x"}', "The file holds no messages"),
    ):
        broken.write_text(content)
        page.locator("#import-file").set_input_files([broken])
        expect(page.locator(".toast.error").last).to_contain_text(said)
        page.locator(".toast.error").last.evaluate("shown => shown.remove()")


def test_an_imported_comparison_is_shown_however_little_it_says(open_small: OpenPage) -> None:
    page = open_small()
    halves = ({"content": "Without."}, "none")
    messages = [
        message
        for plain in halves
        for message in (
            {"role": "user", "content": "How long?"},
            {"role": "assistant", "content": "With.", "plain": plain, "chunks": "none"},
        )
    ]
    import_messages(page, messages)
    expect(page.locator("li.assistant.compared")).to_have_count(1)
    expect(page.locator("li.assistant").first).to_contain_text("Without.")
    expect(page.locator("li.assistant").last).to_contain_text("With.")


def test_an_imported_question_about_a_document_is_asked_again_about_it(open_small: OpenPage) -> None:
    page = open_small()
    answer_with(page, None, ["one"])
    documents: list[str] = []
    page.on(
        "request", lambda r: r.url.endswith("/completions") and documents.append(r.post_data_json["memory"]["document"])
    )
    abouts = ("handbook", {"source": "handbook"}, {"key": "rules.md"}, {"key": "handbook.md", "source": "handbook"})
    messages = [
        message
        for about in abouts
        for message in (
            {"role": "user", "content": "How long?", "about": about},
            {"role": "assistant", "content": "Six weeks."},
        )
    ]
    import_messages(page, messages)
    expect_said(page, "How long?", "How long?", "About rules.mdHow long?", "About handbookHow long?")
    page.get_by_role("button", name="Again").click()
    wait_until_answered(page, 4)
    assert documents == ["handbook.md"]


def test_an_answer_goes_on_while_another_conversation_is_open(open_page: OpenPage) -> None:
    page = short(open_page)
    answer_without_end(page)
    set_settings(page, max_tokens="150")
    ask(page, "a long one")
    expect(answers(page)).to_have_attribute("data-status", "writing")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#list .busy")).to_have_count(1)
    set_settings(page, max_tokens="6")
    ask_and_wait(page, "a short one")
    page.get_by_role("button", name="a long one", exact=True).click()
    wait_until_answered(page)
    assert len(answers(page).locator(".markdown").inner_text()) > 100


def test_a_conversation_deleted_while_it_is_answered_stays_deleted(open_small: OpenPage) -> None:
    page = short(open_small)
    held: list[Route] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    ask(page, "a mistake")
    expect(page.locator("#list .busy")).to_have_count(1)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete a mistake").click()
    expect_said(page)
    page.unroute("**/v1/chat/completions")
    ask_and_wait(page, "another")
    expect(page.locator("#list .open")).to_have_text(["another"])
    expect(page.locator(".toast")).to_have_count(0)


def asked_in_one_of_two_tabs(open_small: OpenPage) -> tuple[Page, Page, Route]:
    """A tab whose answer is under way, another one with the same conversation, and the request of the answer."""
    one = short(open_small)
    held: list[Route] = []
    one.route("**/v1/chat/completions", lambda route: held.append(route))
    ask(one, "first name")
    expect(one.locator("#list .busy")).to_have_count(1)
    one.wait_for_url("**/#*")
    two = open_small(context=one.context, path=f"#{one.url.partition('#')[2]}")
    expect(answers(two)).to_have_attribute("data-status", "waiting")
    two.locator("#list li").hover()
    return one, two, held[0]


def test_a_conversation_that_another_tab_deletes_while_it_is_answered_stays_deleted(open_small: OpenPage) -> None:
    one, two, request = asked_in_one_of_two_tabs(open_small)
    question(one).fill("typed meanwhile")
    two.once("dialog", lambda dialog: dialog.accept())
    two.get_by_role("button", name="Delete first name").click()
    expect_said(two)
    expect_said(one)
    expect(question(one)).to_have_value("typed meanwhile")
    request.abort()
    one.unroute("**/v1/chat/completions")
    ask_and_wait(one, "another")
    expect(two.locator("#list .open")).to_have_text(["another"])


def test_a_name_that_another_tab_gives_while_it_is_answered_stays(open_small: OpenPage) -> None:
    one, two, request = asked_in_one_of_two_tabs(open_small)
    two.once("dialog", lambda dialog: dialog.accept("second name"))
    two.get_by_role("button", name="Rename first name").click()
    expect(one.locator("#list .open")).to_have_text("second name")
    request.fulfill(status=503, json={"error": {"message": "no room"}})
    for tab in (one, two):
        expect(answers(tab)).to_have_attribute("data-status", "failed")
        expect(tab.locator("#list .open")).to_have_text("second name")


def test_an_answer_that_another_tab_writes_is_broken_off_once_that_is_closed(open_small: OpenPage) -> None:
    one, two, _ = asked_in_one_of_two_tabs(open_small)
    expect(two.locator(".note")).to_be_hidden()
    one.close()
    expect(two.locator(".note")).to_contain_text("The page was closed in the middle of this answer")
    expect(two.get_by_role("button", name="Again")).to_be_visible()


def test_a_chat_has_a_system_message_of_its_own_and_a_meter_of_its_context(open_small: OpenPage) -> None:
    page = short(open_small)
    bodies: list[dict[str, object]] = []
    page.on("request", lambda r: r.url.endswith("/completions") and bodies.append(r.post_data_json))
    set_settings(page, system="Be brief.")
    ask_and_wait(page, "hello")
    expect(page.locator("#context-text")).to_contain_text("tokens")
    page.get_by_role("button", name="New chat").click()
    ask_and_wait(page, "hello")
    first, second = (body["messages"] for body in bodies)
    assert first[0] == {"role": "system", "content": "Be brief."}  # type: ignore[index]
    assert second == [{"role": "user", "content": "hello"}]


def test_code_is_copied_and_the_end_is_a_press_away(open_small: OpenPage) -> None:
    page = open_small()
    lines = "\n\n".join(f"line {n}" for n in range(60))
    import_turns(page, "code?", f"Look:\n\n```python\nprint('hi')  # there\n```\n\n{lines}")
    expect(page.locator("pre code")).to_have_text("print('hi')  # there")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the code").click()
    assert page.evaluate("navigator.clipboard.readText()") == "print('hi')  # there"
    page.locator("#thread").evaluate("(thread) => { thread.scrollTop = 0; }")
    page.get_by_role("button", name="To the end of the text").click()
    expect(page.get_by_role("button", name="To the end of the text")).to_be_hidden()


NO_ROOM = "IDBFactory.prototype.open = () => { throw new DOMException('no room', 'QuotaExceededError'); };"
FORBIDDEN = """for (const name of ["localStorage", "sessionStorage", "indexedDB"])
  Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });"""


@pytest.mark.parametrize("storage", [NO_ROOM, FORBIDDEN], ids=["no room", "forbidden"])
def test_a_browser_that_keeps_nothing_says_so_and_the_page_works_on(open_small: OpenPage, storage: str) -> None:
    page = open_small()
    page.context.add_init_script(storage)
    page.reload()
    set_settings(page, mode="off", max_tokens="6")
    ask_and_wait(page, "one", 1)
    expect(page.locator(".toast.error")).to_contain_text("keeps no conversations")
    ask_and_wait(page, "two", 2)
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="one", exact=True).click()
    expect_said(page, "one", "two")


def test_an_installed_page_opens_without_the_app(browser: Browser, tmp_path: Path) -> None:
    app = AppProcess.start(tmp_path, tiny_bundle(tmp_path).folder, "127.0.0.1:1")
    with pages(browser, app) as open_page:
        page = short(open_page)
        ask_and_wait(page, "keep this")
        page.evaluate("navigator.serviceWorker.ready.then(() => true)")
        tools = page.context.new_cdp_session(page)
        problems = tools.send("Page.getInstallabilityErrors")["installabilityErrors"]
        assert [problem["errorId"] for problem in problems] in ([], ["in-incognito"])
        app.stop()
        page.reload()
        expect_said(page, "keep this")
        expect(page.locator("#service")).to_have_text("app not running")
        answer = ask_and_wait(page, "anybody?", 2)
        expect(answer.locator(".note")).to_contain_text("start it again with “edge-client serve”")


ENTER_OF_SAFARI = """(field) => field.dispatchEvent(
  new KeyboardEvent("keydown", { key: "Enter", keyCode: 229, bubbles: true, cancelable: true }))"""


def test_enter_that_ends_the_composition_of_an_input_method_does_not_send(open_small: OpenPage) -> None:
    page = short(open_small)
    question(page).fill("你好")
    question(page).evaluate(ENTER_OF_SAFARI)
    expect(question(page)).to_have_value("你好")
    expect(page.locator("li.user")).to_have_count(0)
    question(page).press("Enter")
    expect_said(page, "你好")
