"""HTML: the words of its main part, a line for each block; menus, scripts and the like are left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memory_service.client.formats.markdown import sentence
from memory_service.client.formats.source_document import SourceDocument, imported
from memory_service.client.formats.text import title_of

_NO_TEXT = ["script", "style", "noscript", "template", "svg", "nav", "header", "footer", "aside", "form"]
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_BLOCKS = [
    *_HEADINGS, "p", "div", "section", "article", "main", "li", "ul", "ol", "dl", "dt", "dd", "tr", "table", "br",
    "blockquote", "pre", "figcaption", "caption",
]  # fmt: skip


def read(source: Path) -> Iterator[SourceDocument]:
    """One document; the encoding is the one that the page declares, UTF-8 otherwise."""
    tree = imported("selectolax.lexbor").LexborHTMLParser(source.read_bytes())
    head = tree.css_first("title")
    title = _words(head.text()) if head else ""
    root = tree.css_first("main") or tree.css_first("article") or tree.body
    if root is None:
        yield SourceDocument(source, 0, str(source), title or title_of(source))
        return
    first = root.css_first("h1")
    if not title and first:
        title = _words(first.text())
    yield SourceDocument(source, 0, str(source), title or title_of(source), _text(root, title))


def _text(root: Any, title: str) -> str:
    """The words below `root`, a line a block; a first heading that only repeats the title is left out."""
    root.strip_tags(_NO_TEXT)
    for heading in root.css(", ".join(_HEADINGS)):
        heading.replace_with(f"\n{sentence(_words(heading.text()))}\n")
    for cell in root.css("td, th"):
        cell.insert_after(" ")
    for block in root.css(", ".join(_BLOCKS)):
        block.insert_before("\n")
        block.insert_after("\n")
    lines = [_words(line) for line in root.text().split("\n")]
    lines = [line for line in lines if line]
    if lines and lines[0] == sentence(title):
        lines = lines[1:]
    return "\n".join(lines)


def _words(text: str) -> str:
    return " ".join(text.split())
