"""Tables keep the names of their columns with each row, in every kind of file."""

from pathlib import Path

import pytest

from memory3.formats import FileDocument, Report, read_documents
from memory3.formats.readers.tables import table_lines

BERO = ["printer: Bero; room: 14", "printer: Bero; IP address: 10.0.0.9"]
MARKDOWN = (
    "# Printers\n\n| printer | room | IP address |\n|---|---|---|\n| Alma | 12 | 10.0.0.7 |\n| Bero | 14 | 10.0.0.9 |\n"
)


def read(path: Path) -> list[FileDocument]:
    return list(read_documents(path))


def test_rows_of_markdown_and_html_name_their_columns(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(MARKDOWN)
    rows = "<tr><td>printer<td>room<td>IP address<tr><td>Bero<td>14<td>10.0.0.9"
    (tmp_path / "b.html").write_text(f"<title>Printers</title><p>These:<table>{rows}</table><p>End.")
    spans = "<tr><th>Day<th colspan=2>Open<tr><td rowspan=2>Mon<td>8<td>12<tr><td>14<td>18"
    (tmp_path / "c.html").write_text(f"<table><caption>Hours</caption>{spans}</table>")
    terms = "<dl><dt>Rent<dd>700 euro<dt>Deposit:<dd>1,400 euro</dl>"
    (tmp_path / "d.html").write_text(f"<table><tr><th>Rent<td>700<tr><th>Heating<td>80</table>{terms}")
    found = {path.stem: read(path)[0].text.split("\n") for path in sorted(tmp_path.iterdir())}
    assert found["a"][2:] == BERO
    assert found["b"] == ["These:", *BERO, "End."]
    assert found["c"] == ["Hours.", "Day: Mon; Open: 8, 12", "Day: Mon; Open: 14, 18"]
    assert found["d"] == ["Rent: 700", "Heating: 80", "Rent: 700 euro", "Deposit: 1,400 euro"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_rows_of_csv_with_any_columns_delimiter_and_encoding_are_documents(
    delimiter: str, encoding: str, tmp_path: Path
) -> None:
    rows = [("name", "room", "phone"), ("Jörg", "14", "5,1"), ("Ida", "", "7")]
    text = "".join(delimiter.join(f'"{cell}"' if delimiter in cell else cell for cell in row) + "\r\n" for row in rows)
    file = tmp_path / "staff.csv"
    file.write_bytes(text.encode(encoding))
    first, second = read(file)
    assert (first.title, first.text) == ("Jörg", "name: Jörg\nroom: 14\nphone: 5,1")
    assert (second.key, second.title, second.text) == (f"{file}#row=2", "Ida", "name: Ida\nphone: 7")


def test_csv_of_excel_without_names_and_with_a_key(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sep=;\nkey;colour;size\nk1;pink;3\n")
    (tmp_path / "b.csv").write_text("10.5,pink\n11,blue\n")
    (tmp_path / "c.csv").write_text("key;title;text\nk3;Lamp Ovo;Colour: pink\n")
    ((a,), (b, _), (c,)) = (read(tmp_path / f"{name}.csv") for name in "abc")
    assert (a.key, a.title, a.text) == ("k1", "pink", "colour: pink\nsize: 3")
    assert (b.text, "its first line holds values" in b.notes[0]) == ("column 1: 10.5\ncolumn 2: pink", True)
    assert (c.key, c.title, c.text, c.metadata) == ("k3", "Lamp Ovo", "Colour: pink", {})


@pytest.mark.parametrize(
    ("content", "notes"),
    [
        ("# exported, by hand\n# 2026\nname;room\nIda;4\nOlm;5\n", ("';'", "# exported, by hand / # 2026")),
        ("Rooms 2026;\n;\nname;room\nIda;4\nOlm;5\n", ("';'", "Rooms 2026")),
        ("Rooms 2026\n\nname,room\nIda,4\nOlm,5\n", ("Rooms 2026",)),
        ("#name,room\nIda,4\nOlm,5\n", ()),
    ],
)
def test_what_stands_above_the_names_of_columns_is_a_note(content: str, notes: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content)
    ida, olm = read(tmp_path / "a.csv")
    assert (ida.text.lstrip("#"), olm.text.lstrip("#")) == ("name: Ida\nroom: 4", "name: Olm\nroom: 5")
    assert len(ida.notes) == len(notes)
    assert all(part in note for part, note in zip(notes, ida.notes, strict=True))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("country,2019,2020\nMalta,2011,2013\nChad,67.1,\n", "country: Malta\n2019: 2011\n2020: 2013"),
        ("Souls\n\ncountry,2019\nMalta,0.5\nChad,17.2\n", "country: Malta\n2019: 0.5"),
        ("item,2024-01,2024-02\nNut,5,6\n", "item: Nut\n2024-01: 5\n2024-02: 6"),
        ("week,1,2,3\nIda,5,2,9\n", "week: Ida\n1: 5\n2: 2\n3: 9"),
        (",0,1\n0,pink,blue\n", "column 1: 0\n0: pink\n1: blue"),
        ("city,colour,size,42\nRome,pink,S,7\n", "city: Rome\ncolour: pink\nsize: S\n42: 7"),
    ],
)
def test_numbers_that_name_columns_are_kept_and_said(content: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content)
    first = read(tmp_path / "a.csv")[0]
    assert first.text == text
    assert first.notes[-1] == "its first line was taken for the names of its columns, although it has numbers"


@pytest.mark.parametrize(
    ("row", "following"),
    [
        ("Ida,1984", "Olm,1990"),
        ("2024-01-01,Gate,open", "2024-01-02,Gate,shut"),
        ("Ida,2024-01-01,5", "Olm,2024-01-02,6"),
        ("1,2,3", "4,5,6"),
        ("Ida,,5", "Olm,3,6"),
        ("Ida,Rome,-0.50", "Olm,Oslo,n/a\nEve,Bonn,7\nUlf,Ulm,8"),
    ],
)
def test_a_first_line_like_those_below_it_is_a_row(row: str, following: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{row}\n{following}\n")
    first = read(tmp_path / "a.csv")[0]
    assert first.text == "\n".join(f"column {n}: {cell}" for n, cell in enumerate(row.split(","), 1) if cell)
    assert first.notes == ("its first line holds values, so its columns have no names",)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('name,tags\nBolt,"red;green;blue"\nNut,"red;blue;steel"\n', "name: Bolt\ntags: red;green;blue"),
        ("name;note\nBolt;red, steel\nNut;blue, tin\n", "name: Bolt\nnote: red, steel"),
        ("name|note\n" + "Bolt|red, steel\n" * 40 + "Nut|a;b\n" * 40, "name: Bolt\nnote: red, steel"),
    ],
)
def test_lists_in_cells_do_not_divide_them(content: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content)
    assert read(tmp_path / "a.csv")[0].text == text


def test_a_record_whose_key_is_empty_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("key,text\n,One.\nb,Two.\n")
    (tmp_path / "a.jsonl").write_text('{"key": " ", "text": "One."}\n{"key": "b", "text": "Two."}\n')
    for file in sorted(tmp_path.iterdir()):
        assert [(one.unreadable, one.text) for one in read(file)] == [("`key` is empty", ""), ("", "Two.")]


@pytest.mark.parametrize(
    ("content", "cells", "note"),
    [
        ('name,note\nIda,"says \\"hi\\", now"\nOlm,b\n', ('says "hi", now', "b"), "follow a backslash"),
        ('name,note\nIda,"open\nOlm,b\n', ('"open', "b"), "do not match"),
        ('name,note\nIda,"says ""hi"""\nOlm,b\n', ('says "hi"', "b"), ""),
    ],
)
def test_quotes_of_other_programs_lose_no_row(content: str, cells: tuple[str, str], note: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content)
    ida, olm = read(tmp_path / "a.csv")
    assert (ida.text, olm.text) == (f"name: Ida\nnote: {cells[0]}", f"name: Olm\nnote: {cells[1]}")
    assert note in " ".join(ida.notes)


def test_a_table_without_rows_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,room\n")
    report = Report()
    assert list(read_documents(tmp_path / "a.csv", report=report)) == []
    assert [(one.reason, one.why) for one in report.skipped] == [("empty", "a table without rows")]


def test_captions_sections_and_tables_without_names() -> None:
    assert table_lines([("Staff 2026", ""), ("Name", "Room"), ("Ida", "4")]) == ["Staff 2026", "Name: Ida; Room: 4"]
    assert table_lines([("Rent", "700"), ("Heating", "80")]) == ["Rent: 700", "Heating: 80"]
    assert table_lines([("Ida", "4", "x"), ("1", "2", "3")], headed=False) == ["Ida | 4 | x", "1 | 2 | 3"]
    assert table_lines([("a", "", "b"), ("", "", ""), ("1", "", "2")], headed=True) == ["a: 1; b: 2"]
    assert table_lines([]) == table_lines([("", "")]) == []


def test_a_long_row_is_several_lines_that_begin_with_its_first_cell() -> None:
    names = ["machine", *(f"property {n}" for n in range(30))]
    lines = table_lines([names, ["Press Orla", *(f"value number {n}" for n in range(30))]], headed=True)
    assert len(lines) > 2
    assert all(line.startswith("machine: Press Orla; property ") and len(line) <= 360 for line in lines)


def test_names_of_columns_without_a_value_are_kept() -> None:
    names = ("Store", "Phone", "Fax")
    assert table_lines([names, ("12", "", ""), ("14", "55 31", "")], headed=True) == [
        "12",
        "Store: 14; Phone: 55 31",
        "without a value: Fax",
    ]
    assert table_lines([names, ("To be done", "", "")], headed=True) == ["Store | Phone | Fax", "To be done"]
    assert table_lines([("Day", "Open", "Open"), ("Mon", "8", "")], headed=True) == ["Day: Mon; Open: 8"]
