"""Files as documents: what is read, and what is said of what cannot be."""

import datetime
import decimal
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from memory3.errors import InvalidInput, MissingFile
from memory3.formats import KINDS, FileDocument, count_documents, find_sources, read_documents
from tests.memory3.formats import office_files

ONE_OF_EACH = [kind.suffixes[0] for kind in KINDS if kind.extra != "ocr"]


def read(path: Path) -> list[FileDocument]:
    return list(read_documents(path))


def test_rows_of_csv_are_documents_and_other_columns_metadata(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text('\ufeffkey,text,year\na,"One,\ntwo.",1999\nb,Three.,\nc,Four.,1,2\n', encoding="utf-8")
    first, second, third = read(table)
    assert (first.key, first.text, first.metadata) == ("a", "One,\ntwo.", {"year": "1999"})
    assert (second.key, second.metadata, second.unreadable) == ("b", {}, "")
    assert third.unreadable == "the row has 4 cells, the first line 3"
    assert third.where == f"{table}, line 5"
    assert count_documents(table) == 3
    tabs = tmp_path / "b.tsv"
    tabs.write_text("key\ttext\na\tOne.\n")
    assert [d.text for d in read(tabs)] == ["One."]


def test_rows_of_parquet_are_documents(tmp_path: Path) -> None:
    table = tmp_path / "a.parquet"
    columns = {
        "key": ["a", "b", None],
        "text": ["One.", "Two.", "Three."],
        "title": ["T", None, ""],
        "metadata": [[("x", "1")], None, []],
        "year": [1999, None, 1],
    }
    schema = pyarrow.schema(
        [
            ("key", pyarrow.string()),
            ("text", pyarrow.string()),
            ("title", pyarrow.string()),
            ("metadata", pyarrow.map_(pyarrow.string(), pyarrow.string())),
            ("year", pyarrow.int64()),
        ]
    )
    parquet.write_table(pyarrow.table(columns, schema), table)
    first, second, third = read(table)
    assert (first.key, first.title, first.text) == ("a", "T", "One.")
    assert first.metadata == {"year": "1999", "x": "1"}
    assert (second.metadata, second.unreadable) == ({}, "")
    assert third.where == f"{table}, row 3"
    assert "`key`" in third.unreadable
    assert count_documents(table) == 3


@pytest.mark.parametrize("suffix", ONE_OF_EACH)
@settings(deadline=None, max_examples=20)
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_make_a_reader_raise(suffix: str, content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / f"fuzzed{suffix}"
    file.write_bytes(content)
    for document in read(file):
        assert document.unreadable or document.key
    assert count_documents(file) >= 0


def test_items_of_ordered_lists_keep_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("3. Whisk the eggs.\n4. Fry.\n\n   Turn once.\n\n- Salt\n")
    items = "<li>Whisk <b>the</b> eggs.</li><li></li>\n<li><p>Fry.</p><p>Turn once.</p></li>"
    (tmp_path / "a.html").write_text(f'<ol start="3">{items}</ol><ul><li>Salt</li></ul>')
    for name in ("a.md", "a.html"):
        (document,) = read_documents(tmp_path / name)
        lines = [line for line in document.text.split("\n") if line]
        assert lines == ["3. Whisk the eggs.", "4. Fry.", "Turn once.", "Salt"]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.json"])
def test_letters_and_their_marks_are_one_character(name: str, tmp_path: Path) -> None:
    texts = {"a.csv": "name,place\nCafe\u0301,Ko\u0308ln\n", "a.json": '{"Cafe\u0301": "Ko\u0308ln"}'}
    (tmp_path / name).write_text(texts.get(name, "The Cafe\u0301 is in Ko\u0308ln.\n"))
    (read,) = read_documents(tmp_path / name)
    assert ("Caf\u00e9" in read.text, "K\u00f6ln" in read.text, "\u0301" in read.title) == (True, True, False)


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.csv", "a.json", "a.html"])
def test_soft_hyphens_do_not_divide_words(name: str, tmp_path: Path) -> None:
    texts = {"a.csv": "name,depth\nQu\u00aday,4\n", "a.json": '{"Qu\u00aday": 4}'}
    (tmp_path / name).write_text(texts.get(name, "The Qu\u00aday is 4 m deep.\n"))
    (document,) = read_documents(tmp_path / name)
    assert "Quay" in document.text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.md", "# Closed on Monday\n"),
        ("b.md", "---\ntitle: Closed on Monday\n---\n# Closed on Monday\n"),
        ("a.html", "<title>Closed on Monday</title><h1>Closed on Monday</h1>"),
        ("a.ipynb", '{"cells": [{"cell_type": "markdown", "source": "# Closed on Monday"}]}'),
        ("a.pptx", ""),
    ],
)
def test_a_file_that_has_only_a_heading_is_its_heading(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    if name.endswith(".pptx"):
        office_files.write_pptx(tmp_path / name, ("Closed on Monday", "", ""))
    (document,) = read(tmp_path / name)
    assert (document.title, document.text) == ("Closed on Monday", "Closed on Monday")
    assert document.notes[-1] == "it has no text but its title"


def test_json_lines_may_have_blank_lines_and_other_types_of_metadata(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(
        '{"key": "a", "text": "t", "metadata": {"n": 1, "s": "x", "l": [true]}}\n\n{"key": "b", "text": "\\ud800"}\n'
    )
    first, second = read_documents(file)
    assert first.metadata == {"n": "1", "s": "x", "l": "[true]"}
    assert (second.position, "surrogates" in second.unreadable) == ("line 3", True)
    assert second.where == f"{file}, line 3"
    assert count_documents(file) == 2


def test_what_other_programs_write_is_read_or_named(tmp_path: Path) -> None:
    (tmp_path / "mark.jsonl").write_bytes('\ufeff{"key": "a", "text": "One."}\n'.encode())
    (tmp_path / "twice.csv").write_text("key,text,text\na,One.,Two.\n")
    (tmp_path / "wide.html").write_bytes("<p>One.</p>".encode("utf-16"))
    (tmp_path / "deep.md").write_text("".join(f"{'  ' * n}- level {n}\n" for n in range(12)))
    (tmp_path / "bare.md").write_text("# \n\nOne.\n")
    found = {path.name: read(path)[0] for path in sorted(tmp_path.iterdir())}
    assert [found[name].text for name in ("mark.jsonl", "wide.html", "bare.md")] == ["One."] * 3
    assert found["bare.md"].title == "bare"
    assert found["deep.md"].text.split("\n\n")[-1] == "level 11"
    assert found["twice.csv"].unreadable == "more than one column text"


def test_folders_and_patterns_give_their_files_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "sub/d.jsonl", ".git/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "c.bin").write_bytes(b"\0\1\2")
    assert [path.name for path in find_sources([tmp_path])] == ["a.md", "b.txt", "d.jsonl"]
    with pytest.raises(InvalidInput, match=r"c\.bin is of an unsupported kind"):
        find_sources([tmp_path / "c.bin"])
    assert [path.name for path in find_sources([tmp_path / "**/*.jsonl", tmp_path / "a.md"])] == ["d.jsonl", "a.md"]
    for nothing in ("none.txt", "*.csv"):
        with pytest.raises(MissingFile):
            find_sources([tmp_path / nothing])


def test_values_of_parquet_become_text_that_filters_compare(tmp_path: Path) -> None:
    columns = {
        "key": ["a"],
        "text": ["One."],
        "day": [datetime.date(2024, 1, 5)],
        "moment": [datetime.datetime(2024, 1, 5, 6, 7, 8, tzinfo=datetime.timezone.utc)],
        "hour": [datetime.time(6, 7)],
        "span": [datetime.timedelta(hours=1, milliseconds=500)],
        "price": [decimal.Decimal("12.50")],
        "small": [decimal.Decimal("0.00000001")],
        "share": [0.1],
        "large": [2**63 - 1],
        "checked": [True],
        "raw": [b"bytes"],
        "several": [[datetime.date(2024, 1, 5), datetime.date(2024, 6, 1)]],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    (one,) = read(tmp_path / "a.parquet")
    assert one.metadata == {
        "day": "2024-01-05",
        "moment": "2024-01-05T06:07:08+00:00",
        "hour": "06:07:00",
        "span": "PT3600.5S",
        "price": "12.50",
        "small": "0.00000001",
        "share": "0.1",
        "large": "9223372036854775807",
        "checked": "true",
        "raw": "bytes",
        "several": '["2024-01-05", "2024-06-01"]',
    }
    parquet.write_table(pyarrow.table({"key": ["a"], "text": ["One."], "raw": [b"\xff"]}), tmp_path / "b.parquet")
    (bad,) = read(tmp_path / "b.parquet")
    assert "UTF-8" in bad.unreadable
