from __future__ import annotations

from pathlib import Path

import pytest

from memory_model.errors import InvalidInput, MissingFile
from memory_service.client.formats import count_documents, find_sources, read_documents


def test_markdown_takes_its_title_from_the_first_heading(tmp_path: Path) -> None:
    page = tmp_path / "some_page.md"
    page.write_text(
        "---\nlayout: x\n---\n\n# The [title](http://x)\n\nText with ![an image](y.png).\n\n## Part\n\nMore.\n"
    )
    (document,) = read_documents(page)
    assert document.title == "The title"
    assert document.text.split("\n\n") == ["Text with an image.", "Part.", "More."]
    page.write_text("No heading first.\n\n# Later\n")
    (document,) = read_documents(page)
    assert (document.title, document.text) == ("some page", "No heading first.\n\nLater.")


def test_json_lines_may_have_blank_lines_and_other_types_of_metadata(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(
        '{"key": "a", "text": "t", "metadata": {"n": 1, "s": "x", "l": [true]}}\n\n{"key": "b", "text": "\\ud800"}\n'
    )
    first, second = read_documents(file)
    assert first.metadata == {"n": "1", "s": "x", "l": "[true]"}
    assert (second.place, "surrogates" in second.error) == ("line 3", True)
    assert second.where == f"{file}, line 3"
    assert count_documents(file) == 2


def test_only_known_files_are_sources(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "c.docx", "sub/d.jsonl", ".git/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [path.name for path in find_sources([tmp_path])] == ["a.md", "b.txt", "d.jsonl"]
    with pytest.raises(InvalidInput, match=r"c\.docx"):
        find_sources([tmp_path / "c.docx"])
    assert [path.name for path in find_sources([tmp_path / "**/*.jsonl", tmp_path / "a.md"])] == [
        "d.jsonl",
        "a.md",
    ]
    for nothing in ("none.txt", "*.csv"):
        with pytest.raises(MissingFile):
            find_sources([tmp_path / nothing])
