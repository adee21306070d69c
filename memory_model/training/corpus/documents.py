"""Books and manuals that Debian carries as HTML: its history, the Administrator's Handbook, Python's own docs.

The reader keeps the paragraphs (`<p>`, and the handbook's `<div class="para">`) under the last heading, and
leaves out listings, tables, navigation and everything that is not sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from memory_model.training.corpus.passages import Passage, document_passages, is_prose, join_lines, slug

_SKIPPED = {"pre", "script", "style", "table", "nav", "footer", "header"}
_HEADINGS = {"h1", "h2", "h3", "h4"}
_VOID = {"br", "hr", "img", "input", "link", "meta", "col", "source", "wbr"}


class _Reader(HTMLParser):
    """Collects [heading, paragraphs] of a page; the class keeps the tags that are open."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sections: list[tuple[str, list[str]]] = [("", [])]
        self._open: list[tuple[str, str]] = []  # (tag, role)
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            return
        kind = dict(attrs).get("class") or ""
        role = ""
        if tag in _SKIPPED or kind in ("url", "toc", "sphinxsidebar"):
            role = "skip"
        elif tag in _HEADINGS:
            role = "heading"
        elif tag == "p" or kind == "para":
            role = "paragraph"
        if role in ("heading", "paragraph"):
            self._flush()
        self._open.append((tag, role))

    def handle_endtag(self, tag: str) -> None:
        if all(name != tag for name, _ in self._open):
            return
        while self._open:
            name, role = self._open[-1]
            if role in ("heading", "paragraph"):
                self._flush()
            self._open.pop()
            if name == tag:
                break

    def handle_data(self, data: str) -> None:
        roles = [role for _, role in self._open]
        if "skip" not in roles and ("heading" in roles or "paragraph" in roles):
            self._text.append(data)

    def _flush(self) -> None:
        text = join_lines("".join(self._text)).rstrip("¶ ")
        self._text = []
        if not text:
            return
        inner = next((role for _, role in reversed(self._open) if role), "")
        if inner == "heading":
            self.sections.append((re.sub(r"^(?:Chapter )?[\d.]+\s*", "", text), []))
        elif is_prose(text):
            self.sections[-1][1].append(text)


def sections(page: str) -> list[tuple[str, list[str]]]:
    """(heading, paragraphs) of an HTML page, sections without prose left out."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return [(heading, paragraphs) for heading, paragraphs in reader.sections if paragraphs]


def passages(source: str, book: str, folder: Path, pattern: str) -> Iterator[Passage]:
    """The passages of the pages that `pattern` finds in `folder`; titles are `book: heading`."""
    for path in sorted(folder.glob(pattern)):
        page = path.read_text(encoding="utf-8", errors="replace")
        for number, (heading, paragraphs) in enumerate(sections(page)):
            key = f"{folder.name}/{slug(path.stem)}/{number}"
            title = f"{book}: {heading}" if heading else book
            yield from document_passages(source, key, title, paragraphs)
