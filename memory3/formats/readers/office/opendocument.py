"""OpenDocument: text, sheets, slides and drawings, with their comments, headers and footers.

The converter of `office` reads no slides, and leaves out lists in cells and rows with merged cells. Names of elements:
ODF 1.3, part 3.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from memory3.formats.document import useful_title
from memory3.formats.readers.elements import attribute_of, tag_of
from memory3.formats.readers.markup.typography import raised, sentence, words
from memory3.formats.readers.office.numbering import OpenNumbering
from memory3.formats.readers.tables import table_lines

SUFFIXES = (".odt", ".ods", ".odp", ".odg")
_COMMENT = "annotation"
_NO_TEXT = (_COMMENT, "tracked-changes", "forms", "table-of-content-source", "alphabetical-index-source")
_NO_VALUE = ("hidden", "password", "button", "image", "file")
"""Fields of forms that show no text of a person."""
_SHAPES = ("custom-shape", "rect", "ellipse", "circle", "line", "path", "polygon", "connector", "caption")
_ANCHORED = ("note", "frame", "g", *_SHAPES)
"""Elements within a paragraph whose words follow it."""
_WIDEST = 1000
"""Columns of a table, and spaces that one element stands for."""
_SET = {"header-decl": "Header", "footer-decl": "Footer", "date-time-decl": "Date"}
_OBJECT = re.compile(r".+/content\.xml")
"""A document within the document; programs name its folder as they like: `Object 1`, `Object_1`, `Chart1`."""
_ABOVE = re.compile("super|[1-9]")
_FIELDS = ("sheet-name", "title", "date", "time", "file-name", "page-number", "page-count")
_EDGES = ("header", "footer")


def text_of(archive: zipfile.ZipFile) -> tuple[str, str, str]:
    """The title of a file, the heading of its text, first sheet or first page if it begins with one, and its text."""
    content = _body(archive, "content.xml")
    body = next(part for part in content.iter() if tag_of(part) == "body")
    styles = [_body(archive, "styles.xml")] if "styles.xml" in archive.namelist() else []
    OpenNumbering(*styles, content).number(body)
    (heading, first), *others = list(_sections(body)) or [("", "")]
    blocks = [first, *("\n".join(filter(None, (sentence(name), text))) for name, text in others)]
    return _title(archive), heading, "\n\n".join(filter(None, blocks))


def _sections(content: Element) -> Iterator[tuple[str, str]]:
    """Each heading or paragraph of a text, sheet, and page, as its heading, or empty, and its other words."""
    for part in content:
        if tag_of(part) == "text":
            yield from _blocks(part)
        elif tag_of(part) == "table":
            if lines := _table(part):
                yield words(attribute_of(part, "name")), "\n".join(lines)
        elif tag_of(part) == "page":
            yield _page(part)
        else:
            yield from _sections(part)


def _page(page: Element) -> tuple[str, str]:
    """The title of a page; its other words and tables, and its speaker notes."""
    frames = [child for child in page if tag_of(child) not in ("notes", _COMMENT)]
    titles = [frame for frame in frames if attribute_of(frame, "class") == "title"]
    title = words(" ".join(line for frame in titles for line in _lines(frame)))
    lines = [line for frame in frames if frame not in titles for line in _lines(frame)]
    notes = [line for child in page if tag_of(child) == "notes" for line in _lines(child)]
    return title, "\n".join([*lines, *(["Notes: " + "\n".join(notes)] if notes else [])])


def left_out(archive: zipfile.ZipFile, suffix: str) -> Iterator[tuple[str, str]]:
    """Labels and texts of comments, headers, footers and fields, which stand apart from the text."""
    content = _body(archive, "content.xml")
    for element in content.iter():
        if tag_of(element) == _COMMENT:
            yield "Comment", "\n".join(_lines(element))
        elif label := _SET.get(tag_of(element)):
            yield label, words("".join(element.itertext()))
        elif tag_of(element) in ("page", "shapes"):  # of slides and sheets
            yield from (("Field", words(part.text or "")) for part in element if tag_of(part) == "control")
    if suffix != ".ods":  # whose charts show cells
        for name in filter(_OBJECT.fullmatch, archive.namelist()):
            yield from _object(_body(archive, name))
    if "styles.xml" not in archive.namelist():
        return
    for element in (e for e in _body(archive, "styles.xml").iter() if tag_of(e) == "master-page"):
        for part in element.iter():
            name = tag_of(part) if suffix in (".odt", ".ods") else attribute_of(part, "class")
            if (edge := name.partition("-")[0]) in _EDGES:
                if suffix == ".ods":
                    yield f"Printed {edge}", "\n".join(_printed(part))
                else:
                    yield edge.capitalize(), "\n".join(_lines(part))


def _printed(edge: Element) -> Iterator[str]:
    """The lines above or below the pages of a sheet, without its fields, such as `Page 1 / 99`, which each file has."""
    for paragraph in (part for part in edge.iter() if tag_of(part) == "p"):
        fields = [part for part in paragraph.iter() if tag_of(part) in _FIELDS]
        for field in fields:
            field.text = ""
        text = words(_words(paragraph))
        if len(re.findall(r"\w+", text)) > (1 if fields else 0):
            yield text


def _object(content: Element) -> Iterator[tuple[str, str]]:
    """A chart with its table, a formula as its author wrote it, or another document within the document."""
    kinds = {tag_of(element) for element in content.iter()}
    formula = [words(element.text or "") for element in content.iter() if tag_of(element) == "annotation"]
    label = "Chart" if "chart" in kinds else "Formula" if formula else "Object"
    yield label, "\n".join(_lines(content) or formula[:1])


def _body(archive: zipfile.ZipFile, name: str) -> Element:
    """The root of a part, with its raised numbers as such, and its controls with their text."""
    root = ElementTree.fromstring(archive.read(name))
    above = {
        attribute_of(style, "name")
        for style in root.iter()
        if tag_of(style) == "style" and any(_ABOVE.match(attribute_of(part, "text-position")) for part in style)
    }
    for span in root.iter():
        if above and tag_of(span) == "span" and attribute_of(span, "style-name") in above:
            span.text = raised(span.text or "")
    shown = {
        attribute_of(field, "id"): _shown(field)
        for forms in root.iter()
        if tag_of(forms) == "forms"
        for field in forms.iter()
        if tag_of(field) not in _NO_VALUE
    }
    for control in (element for element in root.iter() if shown and tag_of(element) == "control"):
        control.text = f" {shown.get(attribute_of(control, 'control'), '')} "
    return root


def _shown(field: Element) -> str:
    """What people see of a field of a form: whether it is chosen, its label, and what is in it."""
    chosen = _now(field, "state") == "checked" or _now(field, "selected") == "true"
    box = ("☒" if chosen else "☐") if tag_of(field) in ("checkbox", "radio") else ""
    value = "" if box else _now(field, "value")
    options = [attribute_of(one, "label") for one in field if _now(one, "selected") == "true"]
    typed = [text for one in field if tag_of(one) == "p" and (text := _words(one))]
    return " ".join(filter(None, (box, attribute_of(field, "label"), value or ", ".join(options), *typed)))


def _now(field: Element, name: str) -> str:
    """A property of a field, as it is set where somebody set it."""
    return attribute_of(field, f"current-{name}") or attribute_of(field, name)


def _title(archive: zipfile.ZipFile) -> str:
    if "meta.xml" not in archive.namelist():
        return ""
    found = (e.text for e in _body(archive, "meta.xml").iter() if tag_of(e) == "title")
    return useful_title(next(found, ""))


def _lines(element: Element) -> list[str]:
    """The lines of the paragraphs and the tables in an element; comments are not in it."""
    return [line for block in _blocks(element) for text in block for line in text.split("\n") if line]


def _blocks(element: Element) -> Iterator[tuple[str, str]]:
    """Each heading, paragraph and table in an element, as a heading or as lines."""
    for child in element:
        if tag_of(child) in ("p", "h"):
            text = "\n".join(filter(None, map(words, _words(child).split("\n"))))
            yield (words(text), "") if tag_of(child) == "h" else ("", text)
            for inner in _anchored(child):
                label = f"{attribute_of(inner, 'note-class').capitalize()}: " if tag_of(inner) == "note" else ""
                yield "", label + "\n".join(_lines(inner))
        elif tag_of(child) == "table":
            yield "", "\n".join(_table(child))
        elif tag_of(child) == "control":
            yield "", words(child.text or "")
        elif tag_of(child) not in _NO_TEXT:
            yield from _blocks(child)


def _table(table: Element) -> list[str]:
    return table_lines([_cells(row) for row in _rows(table)])


def _rows(table: Element) -> Iterator[Element]:
    """The rows of a table, not those of tables in its cells."""
    for child in table:
        if tag_of(child) == "table-row":
            yield child
        elif tag_of(child).startswith("table-"):  # a group, or those that are repeated on each page
            yield from _rows(child)


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
            text = attribute_of(cell, "date-value").removesuffix("T00:00:00").replace("T", " ") or " ".join(
                _lines(cell)
            )
            cells += [text or attribute_of(cell, "value")] * min(
                _number(cell, "number-columns-repeated"), _WIDEST - len(cells)
            )
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
