"""The documents of the device as the page lists them: files, their pages and rows, and what an upload says."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.accessibility import violations
from tests.browser.conftest import OpenPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


def with_documents(open_small: OpenPage, *files: Path) -> Page:
    """A page whose dialog has read these files."""
    page = open_small()
    page.get_by_role("button", name="Documents").click()
    page.locator("#u-files").set_input_files(files)
    expect(page.locator("#u-list progress")).to_have_count(0, timeout=90_000)
    return page


def test_rows_belong_under_their_file_in_their_order(open_small: OpenPage, tmp_path: Path) -> None:
    (rooms := tmp_path / "rooms.csv").write_text("room\n" + "".join(f"Hall {n}\n" for n in range(1, 12)))
    page = with_documents(open_small, rooms)
    line = page.locator("#u-local > li", has_text="rooms.csv")
    expect(line).to_have_count(1)
    expect(line.locator("summary")).to_contain_text("11 memories")
    line.locator("summary").click()
    rows = line.locator(".parts > li")
    expect(rows.locator("summary .name")).to_have_text([f"Hall {n} (rooms.csv)" for n in range(1, 12)])
    rows.nth(1).locator("summary").click()
    expect(rows.nth(1).locator(".pieces p")).to_have_text("room: Hall 2")
    assert violations(page) == []
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete Hall 2 (rooms.csv)").click()
    expect(rows).to_have_count(10)
    page.get_by_role("button", name="Delete rooms.csv").click()
    expect(line).to_have_count(0)


def test_a_file_whose_upload_broke_off_is_marked_until_it_is_given_again(open_small: OpenPage, tmp_path: Path) -> None:
    (book := tmp_path / "book.txt").write_text("".join(f"Hall {n} has a door.\n" for n in range(2000)))
    page = open_small()
    page.get_by_role("button", name="Documents").click()
    page.locator("#u-files").set_input_files([book])
    expect(page.locator("#u-list")).to_contain_text(" of ", timeout=90_000)
    page.goto("about:blank")
    page = open_small()
    page.get_by_role("button", name="Documents").click()
    line = page.locator("#u-local > li", has_text="book")
    expect(line).to_contain_text("not complete: give the file again")
    assert violations(page) == []
    page.on("dialog", lambda dialog: dialog.accept())
    book.write_text("Hall 1 has a door.\n")
    page.locator("#u-files").set_input_files([book])
    expect(page.locator("#u-list .good")).to_have_count(1, timeout=90_000)
    expect(line).not_to_contain_text("not complete")


def test_a_correction_that_is_being_typed_stays_while_other_files_are_read(
    open_small: OpenPage, tmp_path: Path
) -> None:
    for n in range(2):
        (tmp_path / f"lamp {n}.txt").write_text(f"Lamp {n} is red.")
    page = with_documents(open_small, tmp_path / "lamp 0.txt")
    page.locator("#u-local summary", has_text="lamp 0").click()
    page.get_by_role("button", name="Correct this memory").click()
    page.get_by_label("Text of the memory").fill("Lamp 0 is blue.")
    page.locator("#u-files").set_input_files([tmp_path / "lamp 1.txt"])
    expect(page.locator("#u-local > li", has_text="lamp 1")).to_have_count(1)
    expect(page.get_by_label("Text of the memory")).to_have_value("Lamp 0 is blue.")
    expect(page.get_by_label("Text of the memory")).to_be_focused()
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#u-local .pieces p")).to_have_text("Lamp 0 is blue.")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete lamp 0").press("Enter")
    expect(page.get_by_role("button", name="Delete lamp 1")).to_be_focused()


def test_a_file_that_is_gone_or_holds_nothing_says_so(open_small: OpenPage, tmp_path: Path) -> None:
    for name, content in (("first.txt", "Lamp: 4"), ("gone.txt", "Lamp: 5"), ("empty.csv", "lamp,price\n")):
        (tmp_path / name).write_text(content)
    page = open_small()

    def lose(route: Route) -> None:
        (tmp_path / "gone.txt").unlink()  # while the file before it is read
        route.continue_()

    page.route("**/v1/local?key=first*", lose)
    page.get_by_role("button", name="Documents").click()
    page.locator("#u-files").set_input_files([tmp_path / name for name in ("first.txt", "gone.txt", "empty.csv")])
    expect(page.locator("#u-list progress")).to_have_count(0, timeout=90_000)
    said = page.locator("#u-list li .bad")
    expect(said.nth(0)).to_have_text("It cannot be read: it is a folder, or was moved or deleted")
    expect(said.nth(1)).to_contain_text("A table without rows")


def test_the_name_of_an_upload_is_shown_whole_above_its_message(open_small: OpenPage, tmp_path: Path) -> None:
    long = "A long name of a manual for the boiler in the cellar, second edition.pdf"
    (tmp_path / long).write_bytes(b"no pdf")
    page = with_documents(open_small, tmp_path / long)
    name = page.locator("#u-list .name")
    expect(name).to_have_attribute("title", long)
    assert name.evaluate("element => element.scrollWidth <= element.clientWidth")
    above, below = name.bounding_box(), page.locator("#u-list .bad").bounding_box()
    assert above
    assert below
    assert above["y"] + above["height"] <= below["y"]


def test_files_of_one_name_are_kept_together_and_a_later_one_replaces_visibly(
    open_small: OpenPage, tmp_path: Path
) -> None:
    files = []
    for folder, text in (("a", "Hall 1 has a door.\n"), ("b", "Hall 2 has a window.\n")):
        (tmp_path / folder).mkdir()
        files.append(tmp_path / folder / "notes.md")
        files[-1].write_text(text)
    page = with_documents(open_small, *files)
    listed = page.locator("#u-local summary .name", has_text="notes")
    expect(listed).to_have_text(["notes (2)", "notes"])
    said = page.locator("#u-list .good")
    expect(said).to_have_text(["ready: 1 memory", "ready: 1 memory"])
    for again, expected in ((files[0], "ready: 1 memory"), (files[1], "in place of the earlier notes.md")):
        count = said.count()
        page.locator("#u-files").set_input_files([again])
        expect(said).to_have_count(count + 1, timeout=90_000)
        expect(said.last).to_contain_text(expected)
    expect(listed).to_have_count(2)


def test_a_file_that_the_app_cannot_be_given_has_no_advice_about_answers(open_small: OpenPage, tmp_path: Path) -> None:
    page = open_small()
    page.route("**/v1/local?key=*", lambda route: route.abort())
    (tmp_path / "lamp.txt").write_text("Lamp: 4")
    page.get_by_role("button", name="Documents").click()
    page.locator("#u-files").set_input_files([tmp_path / "lamp.txt"])
    expect(page.locator("#u-list .bad")).to_have_text(
        "The app on this device does not answer: start it again with “edge-client serve”"
    )


GIVE = """(field, [name, files, text]) => {
  const data = new DataTransfer();
  for (const file of files) data.items.add(new File(["Lamp: 4"], file));
  if (text) data.setData("text/plain", text);
  const options = { bubbles: true, cancelable: true };
  const event = name === "paste" ? new ClipboardEvent(name, { clipboardData: data, ...options })
    : new DragEvent(name, { dataTransfer: data, ...options });
  field.dispatchEvent(event);
  return event.defaultPrevented;
}"""


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_files_are_dropped_and_pasted_and_text_goes_into_the_question(open_small: OpenPage, way: str) -> None:
    page = open_small()
    field = page.get_by_label("Your question")
    assert field.evaluate(GIVE, [way, [], "a sentence"]) is False, "the browser puts text into the field"
    if way == "paste":
        assert field.evaluate(GIVE, [way, ["image.png"], "a table"]) is False
    expect(page.locator("#upload-dialog")).to_be_hidden()
    assert field.evaluate(GIVE, [way, ["lamp.txt"], ""]) is True
    expect(page.locator("#u-list .good")).to_have_text("ready: 1 memory", timeout=90_000)
