"""OpenDocument: slides and drawings, which the converter of `office` does not read, and what it leaves out of others.

Names of elements: ODF 1.3, part 3.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from memory3.formats.document import useful_title
from memory3.formats.readers.elements import attribute_of, tag_of
from memory3.formats.readers.markup import sentence, words
from memory3.formats.readers.tables import table_lines

SUFFIXES = (".odt", ".ods", ".odp", ".odg")
SLIDES = (".odp", ".odg")
"""Those whose text is read here, by suffix."""
_COMMENT = "annotation"
_ANCHORED = ("note", "frame", "custom-shape", "g")
"""Elements within a paragraph whose words follow it."""
_WIDEST = 1000
"""Columns of a table, and spaces that one element stands for."""
_SET = {"header-decl": "Header", "footer-decl": "Footer", "date-time-decl": "Date"}
_EDGES = ("header", "footer")


def slides_text(archive: zipfile.ZipFile) -> tuple[str, str, str]:
    """The title of the file, the heading of its first page, and the text of all pages.

    A page has its title as a sentence, its other words and tables, and its speaker notes.
    """
    heading = ""
    pages: list[str] = []
    for page in _body(archive, "content.xml").iter():
        if tag_of(page) != "page":
            continue
        frames = [child for child in page if tag_of(child) not in ("notes", _COMMENT)]
        titles = [frame for frame in frames if attribute_of(frame, "class") == "title"]
        title = words(" ".join(line for frame in titles for line in _lines(frame)))
        lines = [line for frame in frames if frame not in titles for line in _lines(frame)]
        notes = [line for child in page if tag_of(child) == "notes" for line in _lines(child)]
        if title and not (heading or pages):
            heading = title
        elif title:
            lines.insert(0, sentence(title))
        pages.append("\n".join([*lines, *(["Notes: " + "\n".join(notes)] if notes else [])]))
    return _title(archive), heading, "\n\n".join(filter(None, pages))


def left_out(archive: zipfile.ZipFile, suffix: str) -> Iterator[tuple[str, str]]:
    """Labels and texts of comments, headers and footers, which the converter leaves out."""
    content = _body(archive, "content.xml")
    for element in content.iter():
        if tag_of(element) == _COMMENT:
            yield "Comment", "\n".join(_lines(element))
        elif label := _SET.get(tag_of(element)):
            yield label, words("".join(element.itertext()))
    if suffix == ".ods" or "styles.xml" not in archive.namelist():  # sheets have "Page 1" there
        return
    for element in (e for e in _body(archive, "styles.xml").iter() if tag_of(e) == "master-page"):
        for part in element.iter():
            name = tag_of(part) if suffix == ".odt" else attribute_of(part, "class")
            if (edge := name.partition("-")[0]) in _EDGES:
                yield edge.capitalize(), "\n".join(_lines(part))


def _body(archive: zipfile.ZipFile, name: str) -> Element:
    return ElementTree.fromstring(archive.read(name))


def _title(archive: zipfile.ZipFile) -> str:
    if "meta.xml" not in archive.namelist():
        return ""
    found = (e.text for e in _body(archive, "meta.xml").iter() if tag_of(e) == "title")
    return useful_title(next(found, ""))


def _lines(element: Element) -> list[str]:
    """The paragraphs and the tables in an element; comments are not in it."""
    lines: list[str] = []
    for child in element:
        if tag_of(child) in ("p", "h"):
            lines += [line for line in map(words, _words(child).split("\n")) if line]
            lines += [line for inner in _anchored(child) for line in _lines(inner)]
        elif tag_of(child) == "table":
            lines += table_lines([_cells(row) for row in child.iter() if tag_of(row) == "table-row"])
        elif tag_of(child) != _COMMENT:
            lines += _lines(child)
    return lines


def _anchored(paragraph: Element) -> Iterator[Element]:
    """The outermost elements that are anchored in a paragraph."""
    for child in paragraph:
        if tag_of(child) in _ANCHORED:
            yield child
        elif tag_of(child) != _COMMENT:
            yield from _anchored(child)


def _cells(row: Element) -> list[str]:
    cells: list[str] = []
    for cell in row:
        if tag_of(cell) in ("table-cell", "covered-table-cell"):
            cells += [" ".join(_lines(cell))] * min(_number(cell, "number-columns-repeated"), _WIDEST - len(cells))
    return cells


def _words(element: Element) -> str:
    """The words of a paragraph, as they stand."""
    text = element.text or ""
    for child in element:
        if tag_of(child) == "s":
            text += " " * min(_number(child, "c"), _WIDEST)
        elif tag_of(child) in ("tab", "line-break"):
            text += "\t" if tag_of(child) == "tab" else "\n"
        elif tag_of(child) not in (*_ANCHORED, _COMMENT, "page-number"):
            text += _words(child)
        text += child.tail or ""
    return text


def _number(element: Element, name: str) -> int:
    value = attribute_of(element, name)
    return int(value) if value.isdigit() and int(value) > 0 else 1
