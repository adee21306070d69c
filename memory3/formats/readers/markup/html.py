"""HTML as text: the words of a page's main part, a line a block."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memory3.formats.document import FileDocument, title_of, useful_title
from memory3.formats.encoding import decode
from memory3.formats.libraries import imported
from memory3.formats.readers.markup.typography import BREAK, numeral, raised, sentence, words
from memory3.formats.readers.tables import table_lines

_NO_TEXT = ["script", "style", "noscript", "template", "svg", "nav"]
_FRAME = ":is(header, footer, aside):not(:is(article, section, header, footer, aside) *)"
"""Around the text of a page; within an article or a section they belong to it."""
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_BLOCKS = [*_HEADINGS, "p", "div", "section", "article", "main", "li", "ul", "ol", "dl", "dt", "dd", "tr", "table"]
_BLOCKS += ["br", "blockquote", "pre", "figcaption", "caption", "address", "details", "summary", "hr", "td", "th"]
_BLOCKS += ["header", "footer", "aside", "figure", "form", "fieldset", "legend", "option", "textarea", "button"]
_SEEN = "img, select:has(option[selected]) option, :is(form, fieldset, label, li, p, td, th) input"
"""Other inputs are switches of menus."""
_NO_VALUE = ("hidden", "password", "file", "image", "submit", "reset", "button")
_XHTML = re.compile(r"\A\s*<\?xml\b|<html\b[^>]*\bxmlns\s*=")
_CLOSED = re.compile(r"<(?!(?:br|hr|img|input|meta|link|col|area|base|embed|source|track|wbr)\b)(\w+)((?:\s[^<>]*)?)/>")
"""An element of XHTML without content, which is an open one to a parser of HTML."""
_HEAD = 4096
"""Characters in which a page says what it is."""
_NUMBERED = "\x1d"
"""Before the number of an item, whose text may begin with a block of its own."""


def read_html(source: Path) -> Iterator[FileDocument]:
    """The words of a page's main part, a line a block; in the encoding that the page declares, or UTF-8."""
    read = decode(source.read_bytes())
    title, text = html_text(read.text)
    heading, _, below = text.partition("\n")
    if heading == sentence(title):
        text = below
    yield FileDocument(str(source), str(source), title or title_of(source), text).noted(read.note)


def html_text(page: str, *, whole: bool = False) -> tuple[str, str]:
    """The title and the words of the main part of a page, or of the whole."""
    if _XHTML.search(page[:_HEAD]):
        page = _CLOSED.sub(r"<\1\2></\1>", page)
    tree = imported("selectolax.lexbor").LexborHTMLParser(page)
    head = tree.css_first("title")
    title = useful_title(words(head.text())) if head else ""
    if not tree.body:
        return title, ""
    for block in tree.body.css(", ".join(_BLOCKS)):
        block.insert_before(BREAK)
        block.insert_after(BREAK)
    for seen in tree.body.css(_SEEN):
        seen.replace_with(f" {_shown(seen)} ")
    for above in tree.body.css("sup, msup > :last-child"):
        if (text := above.text()) != raised(text):
            above.replace_with(raised(text))
    heading = tree.body.css_first("h1")
    page_heading = words(heading.text()) if heading else ""
    tree.body.strip_tags(_NO_TEXT)
    parts = [tree.body] if whole else _main_parts(tree.body)
    if not title:
        title = next((words(first.text()) for part in parts if (first := part.css_first("h1"))), page_heading)
    return title, "\n".join(line for part in parts for line in _lines_of(part))


def _shown(element: Any) -> str:
    """What people see of a choice or a field of a form, or read in place of an image that the text does not name."""
    values = element.attributes
    kind = element.tag if element.tag != "input" else (values.get("type") or "text").lower()
    if kind == "img":
        text, around = words(values.get("alt") or ""), element.parent
        while around.parent is not None and not around.text().strip():
            around = around.parent
        return "" if text in words(around.text()) else text
    if kind in ("checkbox", "radio", "option"):
        return f"{'☒' if {'checked', 'selected'} & values.keys() else '☐'} {element.text()}"
    return (values.get("value") or "") if kind not in _NO_VALUE else ""


def _main_parts(body: Any) -> list[Any]:
    """The elements with the text of a page: `main`, articles that hold most of it, or all but the page's frame."""
    mains = body.css("main:not(main main)")
    if _characters(mains):
        return list(mains)
    frame = body.css(_FRAME)
    if _characters(frame) < _characters([body]):  # otherwise it is the text
        for part in frame:
            part.decompose()
    articles = body.css("article:not(article article)")
    return list(articles) if 2 * _characters(articles) > _characters([body]) else [body]


def _characters(elements: Sequence[Any]) -> int:
    return sum(len("".join(element.text().split())) for element in elements)


def _lines_of(root: Any) -> list[str]:
    """The words below `root`, a line a block. Lines of the source are no lines of the text, except in `pre`."""
    for table in root.css("table:not(:has(table))"):  # one around others is for their layout
        table.replace_with(f"{BREAK}{BREAK.join(_html_table(table))}{BREAK}")
    for heading in root.css(", ".join(_HEADINGS)):
        heading.replace_with(f"{BREAK}{sentence(words(heading.text()))}{BREAK}")
    for ordered in root.css("ol"):
        items = [item for item in ordered.iter() if item.tag == "li" and item.text().strip()]
        step = -1 if "reversed" in ordered.attributes else 1
        number = _whole(ordered, "start", len(items) if step < 0 else 1)
        for item in items:
            number = _whole(item, "value", number)
            item.insert_before(f"{_NUMBERED}{numeral(number, ordered.attributes.get('type') or '1')}.")
            number += step
    for term in root.css("dt"):
        name = words(term.text())
        following = term.next
        while following is not None and following.tag == "-text":
            following = following.next
        if following is not None and following.tag == "dd" and name and len(name) < 80:
            value = words(following.text())
            following.decompose()
            term.replace_with(f"{BREAK}{name.rstrip(':')}: {value}{BREAK}")
    for block in root.css("pre"):
        block.replace_with(block.text().replace("\n", BREAK))
    text = re.sub(rf"{_NUMBERED}(-?\w+\.)\s*", r"\1 ", root.text())
    return [line for line in map(words, text.split(BREAK)) if line]


def _html_table(table: Any) -> list[str]:
    """The lines of a table; cells that span columns or rows count in each of them."""
    grid: list[list[str]] = []
    spanning: dict[int, tuple[int, str]] = {}  # column: rows left, text
    marks: list[str] = []
    for row in table.css("tr"):
        cells: list[str] = []
        kinds = set()
        for cell in row.css("td, th"):
            _fill(cells, spanning)
            text = words(cell.text())
            kinds.add(cell.tag)
            for _ in range(min(_span(cell, "colspan"), 100)):
                if (rows := _span(cell, "rowspan")) > 1:
                    spanning[len(cells)] = (rows - 1, text)
                cells.append(text)
        _fill(cells, spanning)
        grid.append(cells)
        marks.append("head" if kinds == {"th"} else "label" if row.css_first("th") else "data")
    caption = table.css_first("caption")
    headed = True if marks and marks[0] == "head" and "data" in [m.replace("label", "data") for m in marks] else None
    if marks and "head" not in marks and all(mark == "label" for mark in marks):
        headed = False  # each row has its name in front
    title = [sentence(words(caption.text()))] if caption else []
    return [*title, *table_lines(grid, headed=headed)]


def _fill(cells: list[str], spanning: dict[int, tuple[int, str]]) -> None:
    """Append the cells that a row above reaches down into."""
    while (column := len(cells)) in spanning:
        left, text = spanning.pop(column)
        cells.append(text)
        if left > 1:
            spanning[column] = (left - 1, text)


def _span(cell: Any, name: str) -> int:
    value = cell.attributes.get(name) or ""
    return int(value) if value.isdigit() and int(value) > 0 else 1


def _whole(element: Any, name: str, otherwise: int) -> int:
    value = (element.attributes.get(name) or "").strip()
    return int(value) if re.fullmatch(r"-?[0-9]{1,9}", value) else otherwise
