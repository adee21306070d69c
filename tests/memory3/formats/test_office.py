"""Files of office programs and books: their values, tables with the names of columns, and what is not read."""

import zipfile
from pathlib import Path

from memory3.formats import FileDocument, read_documents
from tests.memory3.formats import office97_files, office_files

TABLE = [("Printer", "Room", "IP address"), ("Alma", 12, "10.0.0.7"), ("Bero", 14, "10.0.0.9")]
BERO = "Printer: Bero; IP address: 10.0.0.9"


def read(path: Path) -> FileDocument:
    (document,) = read_documents(path)
    assert not document.unreadable
    return document


def test_word_has_its_paragraphs_tables_headers_footers_and_comments(tmp_path: Path) -> None:
    file = office_files.write_docx(
        tmp_path / "lease_4.docx",
        "Rent: 700 euro",
        TABLE,
        "Deposit: 1,400 euro",
        header1="Contract number: K-4711",
        footer1="Valid until: 2031",
        comments="ask Ida",
    )
    document = read(file)
    lines = document.text.split("\n")
    assert document.title == "lease 4"
    for line in ("Rent: 700 euro", BERO, "Deposit: 1,400 euro", "Contract number: K-4711", "Comment: ask Ida"):
        assert line in lines
    assert "Valid until: 2031" in lines


def test_pictures_that_are_not_read_are_reported(tmp_path: Path) -> None:
    file = office_files.write_docx(tmp_path / "a.docx", "Text.")
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("word/media/image1.png", b"x")
    assert read(file).notes == ("1 picture in it not read",)


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


def test_powerpoint_has_its_titles_text_and_speaker_notes(tmp_path: Path) -> None:
    slides = ("Quarter plan", "Launch date: 14 May", "Say: Zora"), ("Sites", "Kiruna", "Wait here")
    document = read(office_files.write_pptx(tmp_path / "plan.pptx", *slides))
    assert document.title == "Quarter plan"
    for line in ("Launch date: 14 May", "Say: Zora", "Sites.", "Kiruna", "Notes: Wait here"):
        assert line in document.text.split("\n")


def test_opendocument_epub_and_rtf_have_their_tables(tmp_path: Path) -> None:
    odt = read(office_files.write_odt(tmp_path / "a.odt", "Garden Club", "Annual fee: 25 euro", TABLE))
    assert (odt.title, BERO in odt.text.split("\n"), "Annual fee: 25 euro" in odt.text) == ("Garden Club", True, True)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in TABLE)
    book = read(office_files.write_epub(tmp_path / "a.epub", "The Ferry Log", "<h1>One</h1>", f"<table>{rows}</table>"))
    assert (book.title, BERO in book.text.split("\n")) == ("The Ferry Log", True)
    rtf = tmp_path / "a.rtf"
    rtf.write_bytes(rb"{\rtf1\ansi\ansicpg1252 Sj\'f6mann\par Mooring: berth 19\par Price: 3 \u8364?\par}")
    assert read(rtf).text.split("\n\n") == ["Sjömann", "Mooring: berth 19", "Price: 3 €"]


def test_a_broken_file_fails_and_says_what_it_is_not(tmp_path: Path) -> None:
    for name in ("a.docx", "a.xlsx", "a.pptx", "a.odt", "a.epub"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 cut")
        (document,) = read_documents(tmp_path / name)
        assert document.unreadable
    (tmp_path / "empty.docx").write_bytes(b"")
    (document,) = read_documents(tmp_path / "empty.docx")
    assert document.unreadable


def test_word_of_1997_has_its_tables_without_codes_of_fields_and_names_what_is_left_out(tmp_path: Path) -> None:
    text = "Rent: 750 euro\rPrinter\aRoom\aIP address\a\aAlma\a12\a\a\aBero\a14\a10.0.0.9\a\a"
    text += 'Gr\xf6\xdfe: 5, see \x13 HYPERLINK "http://a.test" \\o "x" \x14the page\x15.\r'
    (document,) = read_documents(office97_files.write_doc(tmp_path / "lease_4.doc", text, footnotes=40))
    lines = document.text.split("\n")
    assert document.title == "lease 4"
    for line in ("Rent: 750 euro", "Printer: Alma; Room: 12", "Printer: Bero; Room: 14", BERO):
        assert line in lines
    assert lines[-1] == "Größe: 5, see the page."
    assert document.notes == ("footnotes not read: save it as .docx",)
    (cut,) = read_documents(office97_files.write_doc(tmp_path / "cut.doc", "Half of it.\r", claimed=200))
    assert cut.notes == ("11 of 200 characters read: save it as .docx",)
    (locked,) = read_documents(office97_files.write_doc(tmp_path / "locked.doc", "Secret.", encrypted=True))
    assert "encrypted" in locked.unreadable


def test_excel_and_powerpoint_of_1997_are_read(tmp_path: Path) -> None:
    sheet = read(office97_files.write_xls(tmp_path / "rooms.xls", TABLE))
    assert (sheet.title, BERO in sheet.text.split("\n")) == ("rooms", True)
    slides = read(office97_files.write_ppt(tmp_path / "pump.ppt", "The pump is red.", "Größe: 5"))
    assert slides.text.split() == ["The", "pump", "is", "red.", "Größe:", "5"]


def test_a_file_with_the_name_of_an_old_kind_is_read_as_what_it_is(tmp_path: Path) -> None:
    new = office_files.write_docx(tmp_path / "a.docx", "Rent: 700 euro", header1="Contract: K-4711")
    assert read(new.rename(tmp_path / "a.doc")).text.split() == ["Rent:", "700", "euro", "Contract:", "K-4711"]
    (tmp_path / "b.doc").write_bytes(rb"{\rtf1\ansi Rent: 800 euro\par}")
    assert read(tmp_path / "b.doc").text == "Rent: 800 euro"
    (tmp_path / "c.xls").write_text("<html><table><tr><th>Room<th>IP<tr><td>14<td>10.0.0.9</table></html>")
    assert "Room: 14; IP: 10.0.0.9" in read(tmp_path / "c.xls").text
    for name in ("d.doc", "d.xls", "d.ppt"):
        (tmp_path / name).write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))
        (document,) = read_documents(tmp_path / name)
        assert f"no readable {name[-3:].upper()} file" in document.unreadable
