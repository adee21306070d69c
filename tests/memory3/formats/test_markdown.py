"""Markdown: its title, its front matter and its lines."""

from pathlib import Path

from tests.memory3.formats.reading import read


def test_lines_of_facts_in_markdown_stay_lines_and_wrapped_prose_runs_on(tmp_path: Path) -> None:
    page = tmp_path / "handbook.md"
    page.write_text("Paid leave: 31 days a year\nOffice: Velmora, 12 Harbour Street\n\nWe meet\nat noon.\n")
    document = read(page)
    assert document.text == "Paid leave: 31 days a year\nOffice: Velmora, 12 Harbour Street\n\nWe meet at noon."


def test_markdown_takes_its_title_from_the_first_heading(tmp_path: Path) -> None:
    page = tmp_path / "some_page.md"
    page.write_text(
        "---\nlayout: x\n---\n\n# The [title](http://x)\n\nText with ![an image](y.png).\n\n## Part\n\nMore.\n"
    )
    document = read(page)
    assert document.title == "The title"
    assert document.text.split("\n\n") == ["layout: x", "Text with an image.", "Part.", "More."]
    assert document.metadata == {"layout": "x"}
    page.write_text("No heading first.\n\n# Later\n")
    document = read(page)
    assert (document.title, document.text) == ("some page", "No heading first.\n\nLater.")


def test_front_matter_is_title_metadata_and_text(tmp_path: Path) -> None:
    page = tmp_path / "front.md"
    page.write_text("---\ntitle: Sauna\nopening_hours: 5 pm to 9 pm\ntags: [house, wood]\n---\n\nBehind the house.\n")
    document = read(page)
    assert document.title == "Sauna"
    assert document.text == "opening_hours: 5 pm to 9 pm\ntags: house, wood\n\nBehind the house."
    assert document.metadata == {"opening_hours": "5 pm to 9 pm", "tags": "house, wood"}
    assert document.notes == ("front matter became metadata and text: opening_hours, tags",)
    page.write_text('+++\ntitle = "Boat"\nberth = 19\n+++\n# The boat\n\nRed.\n')
    document = read(page)
    assert (document.title, document.text) == ("Boat", "berth: 19\n\nThe boat.\n\nRed.")
    page.write_text("---\nstove: [Harvia\n---\n\nText.\n")
    document = read(page)
    assert "stove: [Harvia" in document.text
    assert document.notes[0].startswith("front matter kept as text: ")
