"""Files that are one document each: text, Markdown, HTML and PDF."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from memory3.formats.document import FileDocument
from memory3.formats.records import imported


def read_text(source: Path) -> Iterator[FileDocument]:
    """Plain text in UTF-8; the file's name is the title."""
    yield _of_text(source, lambda text, title: (title, text))


def _of_text(source: Path, parse: Callable[[str, str], tuple[str, str]]) -> FileDocument:
    """The document of a file in UTF-8; `parse` makes (title, text) of its text and of the title its name gives."""
    try:
        return FileDocument(str(source), str(source), *parse(source.read_bytes().decode("utf-8-sig"), title_of(source)))
    except UnicodeDecodeError as error:
        return FileDocument.failed(source, error)


def title_of(source: Path) -> str:
    """A title from the file's name."""
    return source.stem.replace("_", " ")


_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_PARSER = MarkdownIt("commonmark", {"maxNesting": 100}).enable("table")  # what is deeper is left out
_LABEL = re.compile(r"\w[^.!?:]{0,60}: \S")
"""How a line of facts begins: `Paid leave: 31 days`."""


def read_markdown(source: Path) -> Iterator[FileDocument]:
    """CommonMark with tables; the first heading is the title; marks, links and images lose their signs."""
    yield _of_text(source, _parse_markdown)


def _parse_markdown(text: str, title: str) -> tuple[str, str]:
    tokens = _PARSER.parse(_FRONT_MATTER.sub("", text.replace("\r\n", "\n")))
    if len(tokens) > 1 and tokens[0].type == "heading_open":
        title, tokens = _inline(tokens[1]) or title, tokens[3:]
    blocks: list[str] = []
    cells: list[str] | None = None
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "tr_open":
            cells = []
        elif token.type == "tr_close":
            blocks.append(" | ".join(cells or ()))
            cells = None
        elif token.type in ("fence", "code_block"):
            blocks.append(token.content.rstrip("\n"))
        elif token.type == "inline":
            words = _inline(token)
            if cells is not None:
                cells.append(words)
            else:
                blocks.append(_sentence(words) if before and before.type == "heading_open" else words)
    return title, "\n\n".join(block for block in blocks if block)


def _sentence(heading: str) -> str:
    """A heading as a sentence, so that it does not run into the text below it."""
    return heading if not heading or heading[-1] in ".!?:。！？" else f"{heading}."


def _inline(token: Token) -> str:
    """The words of inline text. A wrapped line runs on; one that begins with a label stays a line of its own."""
    lines, kept = [""], [True]
    for child in token.children or ():
        if child.type in ("text", "code_inline", "image"):
            lines[-1] += child.content
        elif child.type in ("softbreak", "hardbreak"):
            lines.append("")
            kept.append(child.type == "hardbreak")
    words = lines[0]
    for line, keep in zip(lines[1:], kept[1:], strict=True):
        words += ("\n" if keep or _LABEL.match(line) else " ") + line
    return words.strip()


_NO_TEXT = ["script", "style", "noscript", "template", "svg", "nav", "header", "footer", "aside", "form"]
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_BLOCKS = [
    *_HEADINGS,
    "p",
    "div",
    "section",
    "article",
    "main",
    "li",
    "ul",
    "ol",
    "dl",
    "dt",
    "dd",
    "tr",
    "table",
    "br",
    "blockquote",
    "pre",
    "figcaption",
    "caption",
]


def read_html(source: Path) -> Iterator[FileDocument]:
    """The words of a page's main part, a line a block; in the encoding that the page declares, or UTF-8."""
    raw = source.read_bytes()
    page = raw.decode("utf-16", "replace") if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else raw
    tree = imported("selectolax.lexbor").LexborHTMLParser(page)
    head = tree.css_first("title")
    title = _words(head.text()) if head else ""
    root = tree.css_first("main") or tree.css_first("article") or tree.body
    if not title and root and (first := root.css_first("h1")):
        title = _words(first.text())
    text = _text_of(root, title) if root else ""
    yield FileDocument(str(source), str(source), title or title_of(source), text)


def _text_of(root: Any, title: str) -> str:
    """The words below `root`, a line a block; a first heading that only repeats the title is left out."""
    root.strip_tags(_NO_TEXT)
    for heading in root.css(", ".join(_HEADINGS)):
        heading.replace_with(f"\n{_sentence(_words(heading.text()))}\n")
    for cell in root.css("td, th"):
        cell.insert_after(" ")
    for block in root.css(", ".join(_BLOCKS)):
        block.insert_before("\n")
        block.insert_after("\n")
    lines = [_words(line) for line in root.text().split("\n")]
    lines = [line for line in lines if line]
    if lines and lines[0] == _sentence(title):
        lines = lines[1:]
    return "\n".join(lines)


def _words(text: str) -> str:
    return " ".join(text.split())


def read_pdf(source: Path) -> Iterator[FileDocument]:
    """The text of all pages; one that cannot be read fails the file, since a document with a hole would look whole."""
    pypdf = imported("pypdf")
    pages: list[str] = []
    place = ""
    try:
        with pypdf.PdfReader(source) as reader:
            if reader.is_encrypted and not reader.decrypt(""):
                raise ValueError("it is encrypted: store it without a password")
            title = (reader.metadata.title if reader.metadata else None) or title_of(source)
            for page in reader.pages:
                place = f"page {len(pages) + 1}"
                pages.append(page.extract_text().strip())
        place, text = "", "\n\n".join(page for page in pages if page)
        if not text:
            raise ValueError(f"no text on its {len(pages)} pages: recognise scanned pages (OCR) first")
        yield FileDocument(str(source), str(source), str(title), text.encode("utf-8", "replace").decode())
    except Exception as error:  # a broken PDF shows itself by any error; it must not end the ingestion of others
        yield FileDocument.failed(source, f"it is no readable PDF: {error}", place)
