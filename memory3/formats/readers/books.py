"""Books: the chapters of an EPUB; sections, verses, tables and notes of a FictionBook; and what they say of themselves.

The converter of `office` reads them too, but a FictionBook without its tables and the texts of its notes, and it fails
at some books in EPUB whose text is not ASCII.
"""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from memory3.errors import InvalidInput
from memory3.formats.document import ENCRYPTED, FileDocument, check_unpacked, title_of, useful_title
from memory3.formats.encoding import decode
from memory3.formats.libraries import imported
from memory3.formats.readers.elements import attribute_of, tag_of
from memory3.formats.readers.markup.html import html_text
from memory3.formats.readers.markup.typography import raised, sentence, words
from memory3.formats.readers.tables import table_lines
from memory3.printable import counted

_LINES = ("p", "v", "subtitle", "text-author", "date")
_NAMES = ("first-name", "middle-name", "last-name", "nickname")
_DESCRIBED = ("author", "translator", "date", "sequence", "publisher", "city", "year", "isbn")
_DUBLIN = {"creator": "Author", "publisher": "Publisher", "date": "Date"}
_ENCRYPTION = "META-INF/encryption.xml"
_ORIGINS = ("title-info", "publish-info")


def read_epub(source: Path) -> Iterator[FileDocument]:
    """The chapters in the order of the spine; the title is the package's, its authors and publisher are lines."""
    imported("selectolax.lexbor")  # what is missing is not the file's fault
    try:
        with zipfile.ZipFile(source) as archive:
            title, text, notes = _book(archive)
    except (zipfile.BadZipFile, ElementTree.ParseError, ValueError, LookupError, OSError, zlib.error) as error:
        yield FileDocument.broken(source, "EPUB file", error)
        return
    yield FileDocument(str(source), str(source), title or title_of(source), text).noted(*notes)


def _book(archive: zipfile.ZipFile) -> tuple[str, str, list[str]]:
    """The title, the text, and notes of what is not read."""
    check_unpacked(archive)
    names = archive.namelist()
    container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
    path = next(attribute_of(part, "full-path") for part in container.iter() if tag_of(part) == "rootfile")
    package = ElementTree.fromstring(archive.read(path))
    files = {
        attribute_of(item, "id"): posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(href)))
        for item in package.iter()
        if tag_of(item) == "item" and (href := attribute_of(item, "href"))
    }
    spine = [files.get(attribute_of(item, "idref"), "") for item in package.iter() if tag_of(item) == "itemref"]
    locked = archive.read(_ENCRYPTION).decode("utf-8", "replace") if _ENCRYPTION in names else ""
    if any(name and name in unquote(locked) for name in spine):
        raise InvalidInput(ENCRYPTED)
    described = [
        (tag_of(field), words(_text(field))) for part in package if tag_of(part) == "metadata" for field in part
    ]
    lines = [f"{_DUBLIN[name]}: {value}" for name, value in described if name in _DUBLIN and value]
    pages = (html_text(decode(archive.read(name)).text, whole=True)[1] for name in spine if name in names)
    missing = sum(name not in names for name in spine)
    pictures = sum(attribute_of(item, "media-type").startswith("image/") for item in package.iter())
    notes = [f"{counted(missing, 'chapter')} missing in it"] if missing else []
    notes += [f"{counted(pictures, 'picture')} in it not read"] if pictures else []
    title = next((useful_title(value) for name, value in described if name == "title"), "")
    return title, "\n\n".join(filter(None, ("\n".join(lines), *pages))), notes


def read_fictionbook(source: Path) -> Iterator[FileDocument]:
    """The title is the description's; its authors, series and publisher are lines before the text."""
    try:
        root = ElementTree.fromstring(source.read_bytes())
        if tag_of(root) != "FictionBook":
            raise ValueError(f"its root is {tag_of(root)}")
        title, text = _read(root)
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        yield FileDocument.broken(source, "FB2 file", error)
        return
    pictures = sum(tag_of(part) == "binary" for part in root)
    note = f"{counted(pictures, 'picture')} in it not read" if pictures else ""
    yield FileDocument(str(source), str(source), title or title_of(source), text).noted(note)


def _read(root: Element) -> tuple[str, str]:
    """The title and the text."""
    infos = [info for part in root if tag_of(part) == "description" for info in part if tag_of(info) in _ORIGINS]
    titles = (words(_text(field)) for info in infos for field in info if tag_of(field) == "book-title")
    described = [line for info in infos for field in info for line in _described(field)]
    bodies = [part for part in root if tag_of(part) == "body"]
    texts = [_note_lines(body) if attribute_of(body, "name") else _lines(body) for body in bodies]
    return next(filter(None, titles), ""), "\n\n".join("\n".join(lines) for lines in (described, *texts) if lines)


def _described(field: Element) -> list[str]:
    """Lines of a field of the description."""
    name = tag_of(field)
    if name == "annotation":
        return _lines(field)
    if name not in _DESCRIBED:
        return []
    value = words(_text(field))
    if name in ("author", "translator"):
        value = " ".join(words(_text(part)) for part in field if tag_of(part) in _NAMES)
    elif name == "sequence":
        name, value = "series", words(f"{attribute_of(field, 'name')} {attribute_of(field, 'number')}")
    label = "ISBN" if name == "isbn" else name.capitalize()
    return [f"{label}: {value}"] if value else []


def _lines(element: Element) -> list[str]:
    lines: list[str] = []
    for child in element:
        name = tag_of(child)
        if name == "title":
            lines.append(sentence(words(" ".join(_lines(child)))))
        elif name in _LINES:
            lines.append(words(_text(child)))
        elif name == "table":
            rows = [row for row in child.iter() if tag_of(row) == "tr"]
            headed = bool(rows) and {tag_of(cell) for cell in rows[0]} == {"th"} and len(rows) > 1
            lines += table_lines([[_text(cell) for cell in row] for row in rows], headed=headed or None)
        elif name == "image":
            lines.append(words(attribute_of(child, "alt") or attribute_of(child, "title")))
        elif (child.text or "").strip():  # words outside of a paragraph
            lines.append(words(_text(child)))
        else:
            lines += _lines(child)
    return [line for line in lines if line]


def _note_lines(body: Element) -> list[str]:
    """Notes, each with its mark: "Note 3: the text"."""
    lines: list[str] = []
    for child in body:
        found = [sentence(" ".join(_lines(child)))] if tag_of(child) == "title" else _lines(child)
        if tag_of(child) == "section" and len(found) > 1 and tag_of(child[0]) == "title":
            found[:2] = [f"Note {found[0].rstrip('.')}: {found[1]}"]
        lines += found
    return lines


def _text(element: Element) -> str:
    """The words of a paragraph, without the marks of notes."""
    text = element.text or ""
    for child in element:
        if tag_of(child) == "image":
            text += attribute_of(child, "alt")
        elif tag_of(child) == "sup":
            text += raised(_text(child))
        elif not (tag_of(child) == "a" and attribute_of(child, "type") == "note"):
            text += _text(child)
        text += child.tail or ""
    return text
