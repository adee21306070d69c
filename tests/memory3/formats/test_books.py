"""EPUB and FictionBook: what is said of a book, its chapters, tables and notes."""

import zipfile
from pathlib import Path

from memory3.formats import read_documents
from tests.memory3.formats import office_files

BOOK = """<?xml version="1.0" encoding="windows-1251"?>
<FictionBook xmlns="http://www.gribuser.ru/xml/fictionbook/2.0" xmlns:l="http://www.w3.org/1999/xlink"><description>
<title-info><author><first-name>Лев</first-name><last-name>Толстой</last-name></author>
<book-title>The Ferry Log</book-title>
<annotation><p>A diary.</p></annotation><sequence name="Ferries" number="2"/></title-info>
<document-info><author><nickname>scanner</nickname></author></document-info>
<publish-info><publisher>Quay Press</publisher><year>1931</year></publish-info></description>
<body><title><p>Part</p><p>One</p></title><section><title><p>The crossing</p></title>
<p>We left at <strong>dawn</strong><a l:href="#n1" type="note">[1]</a>.</p><poem><stanza><v>Grey sea</v></stanza></poem>
<table><tr><th>Berth</th><th>Depth</th></tr><tr><td>19</td><td>4 m</td></tr></table>
<cite><p>Hold fast.</p><text-author>Mate</text-author></cite><code>x = 1</code><image l:href="#a.png"/></section></body>
<body name="notes"><title><p>Notes</p></title>
<section id="n1"><title><p>1</p></title><p>At 5.40.</p><p>By the log.</p></section></body>
<binary id="a.png" content-type="image/png">AAAA</binary></FictionBook>"""


def test_a_book_has_its_description_sections_tables_and_notes(tmp_path: Path) -> None:
    (tmp_path / "a.fb2").write_bytes(BOOK.encode("cp1251"))
    (book,) = read_documents(tmp_path / "a.fb2")
    assert (book.title, book.unreadable, book.notes) == ("The Ferry Log", "", ("1 picture in it not read",))
    described, text, notes = book.text.split("\n\n")
    assert described.split("\n") == [
        "Author: Лев Толстой",
        "A diary.",
        "Series: Ferries 2",
        "Publisher: Quay Press",
        "Year: 1931",
    ]
    lines = [
        "Part One.",
        "The crossing.",
        "We left at dawn.",
        "Grey sea",
        "Berth: 19; Depth: 4 m",
        "Hold fast.",
        "Mate",
    ]
    assert text.split("\n") == [*lines, "x = 1"]
    assert notes.split("\n") == ["Notes.", "Note 1: At 5.40.", "By the log."]


def test_a_broken_book_fails_and_says_why(tmp_path: Path) -> None:
    for content, why in (("<FictionBook><body>", "no element found"), ("<html/>", "its root is html")):
        (tmp_path / "a.fb2").write_text(content)
        (book,) = read_documents(tmp_path / "a.fb2")
        assert why in book.unreadable


def test_a_book_in_epub_has_its_authors_and_all_chapters_in_order_with_their_notes(tmp_path: Path) -> None:
    note = "<p>We left at dawn.</p><aside><p>At 5.40.</p></aside><header>Ferry</header>"
    file = office_files.write_epub(
        tmp_path / "a.epub", "The Ferry Log", f"<h1>One</h1>{note}", "<p>Grey sea, “calm”</p>"
    )
    office_files.rewrite(file, "<dc:title>", "<dc:creator>Ida Berg</dc:creator><dc:date>1931</dc:date><dc:title>")
    (book,) = read_documents(file)
    assert (book.title, book.notes) == ("The Ferry Log", ())
    assert book.text == "Author: Ida Berg\nDate: 1931\n\nOne.\nWe left at dawn.\nAt 5.40.\nFerry\n\nGrey sea, “calm”"


def test_chapters_of_a_book_in_epub_that_are_missing_or_encrypted_are_reported(tmp_path: Path) -> None:
    file = office_files.write_epub(tmp_path / "a.epub", "T", "<p>Dawn</p>")
    office_files.rewrite(file, "</manifest>", '<item id="x" href="lost%20one.xhtml"/></manifest>')
    office_files.rewrite(file, "<spine>", '<spine><itemref idref="x"/>')
    (book,) = read_documents(file)
    assert (book.text, book.notes) == ("Dawn", ("1 chapter missing in it",))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("META-INF/encryption.xml", '<e><CipherReference URI="c0.xhtml"/></e>')
    (locked,) = read_documents(file)
    assert locked.unreadable == "it is no readable EPUB file: it is encrypted: store it without a password"
