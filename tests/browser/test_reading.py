"""Reading while an answer is being written: what is in sight, and what is selected."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import Writer, ask, import_turns, last_answer
from tests.browser.conftest import OpenPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

LONG = "\n\n".join(f"paragraph {n}" for n in range(40))


def below(page: Page) -> float:
    """Pixels of the text below what is in sight."""
    return float(page.locator("#thread").evaluate("(t) => t.scrollHeight - t.scrollTop - t.clientHeight"))


def test_the_end_of_an_answer_is_in_sight_with_its_note_and_tools(open_small: OpenPage) -> None:
    page = open_small()
    writer = Writer(page)
    ask(page, "Long?")
    writer.write(LONG)
    assert below(page) < 2
    writer.finish("from_the_model")
    expect(last_answer(page).locator(".note")).to_contain_text("the model's own words")
    expect(last_answer(page).get_by_role("button", name="Copy")).to_be_in_viewport(ratio=1)
    assert below(page) < 2


def test_a_reader_who_scrolls_up_a_little_stays_there_until_the_end_is_reached_again(open_small: OpenPage) -> None:
    page = open_small()
    writer = Writer(page)
    ask(page, "Long?")
    writer.write(LONG)
    page.locator("#thread").hover()
    page.mouse.wheel(0, -40)
    expect(page.get_by_role("button", name="To the end of the text")).to_be_visible()
    page.wait_for_timeout(300)  # a wheel is turned smoothly
    left = below(page)
    writer.write(f"\n\n{LONG}\n\nlast")
    assert below(page) > left, "what was in sight stays where it is"
    page.get_by_role("button", name="To the end of the text").click()
    writer.write("\n\nand more\n\nof it")
    assert below(page) < 2
    writer.finish()
    assert below(page) < 2


def test_what_is_selected_in_an_answer_stays_selected_while_it_is_written_and_ends(open_small: OpenPage) -> None:
    page = open_small()
    writer = Writer(page)
    ask(page, "How?")
    writer.write("Press the **red** button.\n\nThen wait")
    page.locator("li.assistant p").first.evaluate("(p) => getSelection().selectAllChildren(p)")
    writer.write(" a minute")
    writer.finish("from_the_model")
    expect(last_answer(page).locator(".note")).to_be_visible()
    assert page.evaluate("getSelection().toString()") == "Press the red button."
    expect(last_answer(page).locator(".markdown p")).to_have_text(["Press the red button.", "Then wait a minute"])


def test_a_link_whose_address_comes_at_the_end_becomes_one(open_small: OpenPage) -> None:
    page = open_small()
    writer = Writer(page)
    ask(page, "Where?")
    writer.write("See [the manual][1] and [x].")
    writer.write("\n\n[1]: https://example.org/manual\n\nend")
    expect(last_answer(page).get_by_role("link", name="the manual")).to_have_attribute(
        "href", "https://example.org/manual"
    )
    writer.finish()


def test_a_connection_that_is_lost_in_the_middle_of_an_answer_is_told_in_the_readers_language(
    open_small: OpenPage,
) -> None:
    page = open_small(locale="de-DE")
    writer = Writer(page)
    page.get_by_label("Deine Frage").fill("Wie?")
    page.get_by_label("Deine Frage").press("Enter")
    writer.write("Der rote Knopf")
    writer.lose()
    expect(last_answer(page).locator(".note")).to_have_text("Die Verbindung endete zu früh: versuch es noch einmal")
    expect(last_answer(page).get_by_role("button", name="Fortsetzen")).to_be_visible()


@pytest.mark.parametrize(
    ("error", "verdict", "note"),
    [
        (
            "UNREACHABLE: no service at 10.0.0.2:1",
            "not_in_what_was_read",
            "The service did not answer; read from this device.",
        ),
        (
            "UNAUTHENTICATED: the service wants a key: set EDGE_CLIENT_API_KEY",
            "not_in_what_was_read",
            "Not all memories could be had: The service wants a key: set EDGE_CLIENT_API_KEY.",
        ),
        (
            "EMBEDDER_SLOW: embedding takes too long",
            "from_the_model",
            "Not all memories could be had: Embedding takes too long. These are the model's own words: nothing in the"
            " documents gave them. Check them, or choose “Only from my documents” in the settings.",
        ),
        ("EMBEDDER_SLOW: embedding takes too long", "grounded", ""),
    ],
)
def test_what_could_not_be_read_is_told_with_its_reason_where_it_may_hold_the_answer(
    open_small: OpenPage, error: str, verdict: str, note: str
) -> None:
    page = open_small()
    writer = Writer(page)
    ask(page, "Who has the lamp?")
    writer.write("I don't know.")
    writer.finish(verdict, error=error)
    shown = last_answer(page).locator(".note")
    expect(shown).to_have_text(note) if note else expect(shown).to_be_hidden()


ARABIC = "مرحبا بالعالم.\n\n- بند أول\n\n| مدينة | عدد |\n|---|---|\n| بورتو نوفو | 5 |\n\n> اقتباس\n\nPlain English."


def test_text_is_written_from_the_side_that_it_is_read_from(open_small: OpenPage) -> None:
    page = open_small()
    import_turns(page, "ما هي عاصمة Benin؟\nAnd of Togo?", ARABIC)
    of = "(all) => all.map((one) => getComputedStyle(one).direction)"
    blocks = page.locator(".markdown > *").evaluate_all(of)
    assert blocks == ["rtl", "rtl", "rtl", "rtl", "ltr"]
    starts = page.locator(".said").evaluate("""(said) => {
      const range = document.createRange();
      const text = said.lastChild;
      return [0, text.data.indexOf("And")].map((at) => {
        range.setStart(text, at);
        range.setEnd(text, at + 1);
        return range.getBoundingClientRect().left - said.getBoundingClientRect().left;
      });
    }""")
    assert starts[0] > 60, "the first line begins at the right"
    assert starts[1] < 60, "the second one at the left"


def test_a_wide_table_scrolls_and_breaks_no_word(open_small: OpenPage) -> None:
    page = open_small(viewport={"width": 390, "height": 800})
    wide = "| Name of it | Value | Unit | Column | Another |\n|---|---|---|---|---|\n| P7 | 4 | bar | some | else |"
    import_turns(page, "Which?", f"- one\n\n> quoted\n\n{wide}")
    lines = page.get_by_role("columnheader", name="Unit").evaluate("""(cell) => {
      const range = document.createRange();
      range.selectNodeContents(cell);
      return range.getClientRects().length;
    }""")
    assert lines == 1
    assert page.locator(".markdown table").evaluate("(table) => table.scrollWidth > table.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("blockquote").evaluate("(quote) => parseFloat(getComputedStyle(quote).marginTop)") > 0
