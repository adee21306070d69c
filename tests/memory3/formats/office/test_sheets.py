"""Excel: rows with the names of columns, numbers as people see them, and sheets that are mostly empty."""

import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from memory3.formats import read_documents
from memory3.formats.readers.office import documents as office
from memory3.formats.readers.office import numbers, sheets
from tests.memory3.formats import office97_files, office_files
from tests.memory3.formats.office_files import BERO, TABLE, rewrite
from tests.memory3.formats.reading import read


def test_excel_has_a_line_for_each_row_of_each_sheet(tmp_path: Path) -> None:
    phones = [("Staff of 2026", "", ""), ("Name", "Extension", "Floor"), ("Ines", 4420, ""), ("Sum", "=B3", "")]
    file = office_files.write_xlsx(tmp_path / "office.xlsx", {"Printers": TABLE, "Phones": phones})
    document = read(file)
    lines = document.text.split("\n")
    assert document.title == "office"
    assert BERO in lines
    assert "Name: Ines; Extension: 4420" in lines
    assert {"Printers.", "Phones.", "Staff of 2026"} <= set(lines)
    assert document.notes == ("1 formula without a stored value: open the file in Excel and save it",)


@pytest.mark.parametrize(
    ("stored", "code", "shown"),
    [
        ("0.125", "0.0%", "12.5%"),
        ("1500", '"$"#,##0', "$1,500"),
        ("-3", '_("$"* #,##0.00_);_("$"* \\(#,##0.00\\);_("$"* "-"??_);_(@_)', "$(3.00)"),
        ("0", '_("$"* #,##0.00_);_("$"* \\(#,##0.00\\);_("$"* "-"??_);_(@_)', "$-"),
        ("1234.5", "#,##0.00\\ [$€-407]", "1,234.50 €"),
        ("42", "00000", "00042"),
        ("5", '0.0 "kg"', "5.0 kg"),
        ("-0.2", "[Red]0", "0"),
        ("11.666666666666666", "0.##", "11.67"),
        ("1234567", "#,##0,", "1,235"),
        ("0.385416666666667", "h:mm", "9:15"),
        ("0.75", "[$-409]hh:mm:ss AM/PM;@", "06:00:00 PM"),
        ("0", "h:mm AM/PM", "12:00 AM"),
        ("1.260416666666667", "[h]:mm", "30:15"),
        ("0.0007", "mm:ss.0", "01:00.4"),
        ("0.25", 'h" h "mm" min"', "6 h 00 min"),
        ("44000.5", "h:mm", ""),
        ("44000.5", "d/m/yy h:mm", ""),
        ("5", "mmm", ""),
        ("44000", "dd/mm/yyyy", ""),
        ("0.5", "# ?/?", ""),
        ("3", "General", ""),
        ("5", "[>=100]0;0", ""),
    ],
)
def test_a_number_is_shown_in_its_format_and_left_alone_in_one_that_is_not_of_numbers(
    stored: str, code: str, shown: str
) -> None:
    assert numbers.shown_number(stored, code) == shown


def test_numbers_of_excel_are_read_as_people_see_them(tmp_path: Path) -> None:
    file = office_files.write_xlsx(
        tmp_path / "a.xlsx", {"S": [("Tax", "Fee", "Opens", "Ends"), (0.125, 7, 0.375, 0.75)]}
    )
    formats = '<numFmts><numFmt numFmtId="164" formatCode="0&quot; kg&quot;"/>'
    formats += '<numFmt numFmtId="165" formatCode="[Blue]h:mm"/></numFmts>'
    styles = "".join(f'<xf numFmtId="{number}"/>' for number in (0, 10, 164, 20, 165))
    rewrite(file, "<c><v>0.125</v>", '<c s="1"><f>1/8</f><v>0.125</v>')
    rewrite(file, "<c><v>7</v>", '<c t="n" s="2"><v>7</v>')
    rewrite(file, "<c><v>0.375</v>", '<c s="3"><v>0.375</v>')
    rewrite(file, "<c><v>0.75</v>", '<c s="4"><v>0.75</v>')
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("xl/styles.xml", f"<styleSheet>{formats}<cellXfs>{styles}</cellXfs></styleSheet>")
    values = ("Fee: 7 kg", "Opens: 9:00", "Ends: 18:00:00")
    assert read(file).text.split("\n")[2:] == [f"Tax: 12.50%; {value}" for value in values]


def test_a_last_cell_far_below_the_others_costs_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = office.markdown_text
    monkeypatch.setattr(office, "markdown_text", lambda text, **form: parsed.append(text) or parse(text, **form))
    rows = [["Printer", "Room"], ["Alma", "12"], *([[]] * 2000), ["Bero", "14"], ["", "", "", "end"]]
    sheet = read(office97_files.write_xls(tmp_path / "a.xls", rows))
    assert sheet.text.split("\n")[0] == "Printer: Alma; Room: 12"
    assert sheet.text.endswith("end")
    assert len(parsed[0].split("\n")) < 10
    above = [[], [], ["Printer", "Room"], ["Alma", "12"]]
    assert read(office97_files.write_xls(tmp_path / "b.xls", above)).text == "Printer: Alma; Room: 12"


@pytest.mark.parametrize("suffix", [".xlsm", ".xltx", ".xltm"])
def test_variants_of_excel_are_read_as_excel(tmp_path: Path, suffix: str) -> None:
    sheets = {"Printers": TABLE, "Sums": [("Name", "Value"), ("Sum", "=B3")]}
    base, variant = (read(office_files.write_xlsx(tmp_path / f"a{kind}", sheets)) for kind in (".xlsx", suffix))
    assert (variant.title, variant.text, variant.notes) == (base.title, base.text, base.notes)
    assert BERO in variant.text.split("\n")
    assert variant.notes == ("1 formula without a stored value: open the file in Excel and save it",)


def test_rows_and_columns_without_values_cost_nothing_and_hide_no_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    parse = office.markdown_text
    monkeypatch.setattr(office, "markdown_text", lambda text, **form: parsed.append(text) or parse(text, **form))
    for file in (
        office_files.write_xlsx(tmp_path / "a.xlsx", {"Printers": TABLE}, step=(250_000, 12)),
        office_files.write_xlsb(tmp_path / "a.xlsb", TABLE, step=(250_000, 500)),
        office97_files.write_xls(tmp_path / "a.xls", TABLE, step=(2000, 40)),
    ):
        assert BERO in read(file).text.split("\n")
        assert len(parsed.pop()) < 300


def test_values_of_a_sheet_that_are_too_far_apart_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "MOST_CELLS", 8)
    for file in (
        office_files.write_xlsx(tmp_path / "a.xlsx", {"Printers": TABLE}, step=(1, 1)),
        office_files.write_xlsb(tmp_path / "a.xlsb", TABLE),
        office97_files.write_xls(tmp_path / "a.xls", TABLE),
    ):
        (document,) = read_documents(file)
        assert "a sheet in it has 3 rows and 3 columns with values, and at most 8 cells are read" in document.unreadable


def test_a_binary_sheet_has_its_rows_and_says_that_comments_are_not_read(tmp_path: Path) -> None:
    file = office_files.write_xlsb(tmp_path / "rooms.xlsb", TABLE)
    assert (read(file).title, BERO in read(file).text.split("\n")) == ("rooms", True)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("xl/comments1.bin", b"x")
    assert read(file).notes == ("comments not read: save it as .xlsx",)


def test_text_boxes_and_titles_of_charts_of_sheets_are_read_and_embedded_files_are_counted(tmp_path: Path) -> None:
    file = office_files.write_xlsx(tmp_path / "a.xlsx", {"Printers": TABLE})
    with zipfile.ZipFile(file, "a") as archive:
        box = "<d><a:p xmlns:a='a'><a:r><a:t>Key below</a:t></a:r><a:r><a:t> the mat</a:t></a:r></a:p></d>"
        archive.writestr("xl/drawings/drawing1.xml", box)
        title = "<c:title><a:t>Guests</a:t></c:title>"
        chart = (
            f"<c:chart xmlns:c='c' xmlns:a='a'>{title}<c:valAx>{title.replace('Guests', 'a day')}</c:valAx></c:chart>"
        )
        archive.writestr("xl/charts/chart1.xml", chart)
        archive.writestr("xl/embeddings/object1.docx", b"x")
        archive.writestr("xl/ctrlProps/ctrlProp1.xml", '<formControlPr objectType="CheckBox" checked="Checked"/>')
    assert read(file).text.split("\n")[-2:] == ["Text box: Key below the mat", "Chart title: Guests. a day."]
    control = "1 form control in it: what is chosen is not read"
    assert read(file).notes == (control, "1 embedded file in it not read")


def test_what_is_printed_above_and_below_sheets_is_read_without_codes_and_page_numbers(tmp_path: Path) -> None:
    file = office_files.write_xlsx(tmp_path / "a.xlsx", {"Printers": TABLE, "Spare": TABLE})
    header = '&L&"Arial,Bold"&12&K00-020R&&D &A&Cas of May 2031&RPage &P of &N'
    edges = {
        "oddHeader": header,
        "firstHeader": "As of May",
        "oddFooter": "&CSee page 4 of list &P",
        "evenFooter": "&P",
    }
    parts = "".join(f'<{name} xml:space="preserve">{escape(text)}</{name}>' for name, text in edges.items())
    rewrite(file, "(?=</worksheet>)", f"<headerFooter>{parts}</headerFooter>")
    lines = ["Printed header: R&D", "as of May 2031", "As of May", "Printed footer: See page 4 of list"]
    assert read(file).text.split("\n")[-4:] == lines
