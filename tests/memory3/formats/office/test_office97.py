"""Word, Excel and PowerPoint files of 1997 to 2003, and other files under their names."""

import struct
from pathlib import Path

from memory3.formats import read_documents
from tests.memory3.formats import office97_files, office_files
from tests.memory3.formats.office_files import BERO, TABLE
from tests.memory3.formats.reading import read


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


def test_what_a_chart_of_an_old_sheet_shows_does_not_replace_its_cells(tmp_path: Path) -> None:
    file = office97_files.write_xls(tmp_path / "a.xls", TABLE, chart=(7, 8, 9))
    assert read(file).text == read(office97_files.write_xls(tmp_path / "b.xls", TABLE)).text


def test_codes_of_references_and_embedded_objects_of_old_word_are_no_text(tmp_path: Path) -> None:
    text = "Highlights RENVOIPAGE _Toc533 \\h 2\rSee REF _Ref17 \\r \\h 4.1\rEMBED Excel.Sheet.8 \\s below\rEMBED it\r"
    document = read(office97_files.write_doc(tmp_path / "a.doc", text))
    assert document.text.split() == ["Highlights", "2", "See", "4.1", "below", "EMBED", "it"]


def test_comments_text_boxes_and_printed_edges_of_old_sheets_are_read(tmp_path: Path) -> None:
    def box(kind: int, *parts: tuple[int, bytes], characters: int) -> list[tuple[int, bytes]]:
        said = struct.pack("<HH", 0x15, 0x12) + struct.pack("<H", kind) + bytes(16)
        texts = [(0x3C, bytes([wide]) + part) for wide, part in parts]
        return [(0x5D, said), (0x1B6, bytes(10) + struct.pack("<H", characters) + bytes(6)), *texts]

    edge = "&CPrices&R&P of &N"
    further = [
        (0x14, struct.pack("<HB", len(edge), 0) + edge.encode()),
        *box(0x19, (0, b"ask"), (1, " Zo\u00eb".encode("utf-16-le")), characters=7),
        *box(0x06, (0, b"Key below\rthe mat"), (0, b"\x00\x00"), characters=17),
    ]
    lines = read(office97_files.write_xls(tmp_path / "a.xls", TABLE, further=further)).text.split("\n")
    assert lines[-4:] == ["Printed header: Prices", "Comment: ask Zo\u00eb", "Text box: Key below", "the mat"]


def test_an_encrypted_old_sheet_says_so(tmp_path: Path) -> None:
    (document,) = read_documents(office97_files.write_xls(tmp_path / "a.xls", TABLE, further=[(0x2F, bytes(6))]))
    assert "it is encrypted" in document.unreadable
