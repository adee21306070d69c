"""Markdown (CommonMark with tables): the first heading is the title; marks, links and images lose their signs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from memory_service.client.formats.source_document import SourceDocument
from memory_service.client.formats.text import of_text

_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_PARSER = MarkdownIt("commonmark").enable("table")
_LABEL = re.compile(r"\w[^.!?:]{0,60}: \S")
"""How a line of facts begins: `Paid leave: 31 days`."""


def read(source: Path) -> Iterator[SourceDocument]:
    """One document."""
    return of_text(source, _parse)


def _parse(text: str, title: str) -> tuple[str, str]:
    tokens = _PARSER.parse(_FRONT_MATTER.sub("", text.replace("\r\n", "\n")))
    if len(tokens) > 1 and tokens[0].type == "heading_open":
        title, tokens = _inline(tokens[1]), tokens[3:]
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
                blocks.append(sentence(words) if before and before.type == "heading_open" else words)
    return title, "\n\n".join(block for block in blocks if block)


def sentence(heading: str) -> str:
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
