"""FictionBook: sections, verses, tables and notes of a book, and what its description says of it.

The converter of `office` reads it too, but without its tables and the texts of its notes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from memory3.formats.document import FileDocument, title_of
from memory3.formats.readers.elements import attribute_of, tag_of
from memory3.formats.readers.markup import sentence, words
from memory3.formats.readers.tables import table_lines
from memory3.printable import counted

_LINES = ("p", "v", "subtitle", "text-author", "date")
_NAMES = ("first-name", "middle-name", "last-name", "nickname")
_DESCRIBED = ("author", "translator", "date", "sequence", "publisher", "city", "year", "isbn")
_ORIGINS = ("title-info", "publish-info")


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
        elif not (tag_of(child) == "a" and attribute_of(child, "type") == "note"):
            text += _text(child)
        text += child.tail or ""
    return text
