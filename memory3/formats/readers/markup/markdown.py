"""Markdown as text: CommonMark with tables and front matter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from memory3.formats.document import FileDocument, title_of
from memory3.formats.encoding import decode
from memory3.formats.readers.markup.typography import sentence, words
from memory3.formats.readers.structured import metadata_of, parsed_toml, parsed_yaml, tree_lines
from memory3.formats.readers.tables import table_lines
from memory3.text.paragraphs import LABEL

_FRONT_MATTER = re.compile(r"\A(?P<mark>---|\+\+\+)[ \t]*\n(?P<fields>.*?)\n(?P=mark)[ \t]*(?:\n|\Z)", re.DOTALL)
_PARSER = MarkdownIt("commonmark", {"maxNesting": 100}).enable("table")  # what is deeper is left out
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z][^>]*>")


def read_markdown(source: Path) -> Iterator[FileDocument]:
    """CommonMark with tables and front matter; marks, links and images lose their signs.

    The title is the front matter's, or the first heading. Each field of the front matter is metadata, and a line.
    """
    read = decode(source.read_bytes())
    text = read.text.replace("\r\n", "\n")
    fields, text, note = _front_matter(text)
    heading, body = markdown_text(text)
    titles = fields.pop("title", "") or ""
    title = ", ".join(map(str, titles)) if isinstance(titles, list) else str(titles)
    if title and heading and heading != title:
        body = f"{sentence(heading)}\n\n{body}"
    elif not title:
        title = heading or title_of(source)
    lines = "\n".join(tree_lines(fields))
    if fields:
        note = f"front matter became metadata and text: {', '.join(map(str, fields))}"
    body = "\n\n".join(part for part in (lines, body) if part)
    yield FileDocument(str(source), str(source), title, body, metadata_of(fields)).noted(read.note, note)


def _front_matter(text: str) -> tuple[dict[str, Any], str, str]:
    """Its fields, the text after it, and a note where it cannot be read; then it stays text."""
    found = _FRONT_MATTER.match(text)
    if found is None:
        return {}, text, ""
    try:
        parse = parsed_yaml if found["mark"] == "---" else parsed_toml
        fields = parse(found["fields"])
    except ValueError as error:
        return {}, f"{found['fields']}\n\n{text[found.end() :]}", f"front matter kept as text: {error}"
    if not isinstance(fields, Mapping):  # a horizontal rule and a text
        return {}, text, ""
    return {str(name): value for name, value in fields.items()}, text[found.end() :], ""


def markdown_text(
    text: str, *, headed: bool | None = True, numbered: bool = True, signs: Mapping[int, int] | None = None
) -> tuple[str, str]:
    """The first heading, or empty, and the text of Markdown.

    headed: whether the first row of tables names columns. numbered: whether the numbers of items are
    right. signs: characters that stand for others without a meaning.
    """
    tokens = _PARSER.parse(text)
    for token in tokens if signs else ():
        for one in (token, *(token.children or ())):
            one.content = one.content.translate(signs)
    title = ""
    if len(tokens) > 1 and tokens[0].type == "heading_open":
        title, tokens = _inline(tokens[1]), tokens[3:]
    blocks: list[str] = []
    rows: list[list[str]] | None = None
    number = ""
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "table_open":
            rows = []
        elif token.type == "table_close":
            blocks.append("\n".join(table_lines(rows or [], headed=headed if rows and any(rows[0]) else False)))
            rows = None
        elif token.type == "tr_open" and rows is not None:
            rows.append([])
        elif token.type in ("fence", "code_block"):
            blocks.append(token.content.rstrip("\n"))
        elif token.type == "html_block":
            blocks.append(_without_tags(token.content))
        elif token.type == "list_item_open":
            number = f"{token.info}{token.markup} " if token.info and numbered else ""
        elif token.type == "inline":
            words, number = number + _inline(token), ""
            if rows:
                rows[-1].append(words)
            else:
                blocks.append(sentence(words) if before and before.type == "heading_open" else words)
    return title, "\n\n".join(block for block in blocks if block)


def _inline(token: Token) -> str:
    """The words of inline text. A wrapped line runs on; one that begins with a label stays a line of its own."""
    lines, kept = [""], [True]
    for child in token.children or ():
        if child.type in ("text", "code_inline", "image"):
            lines[-1] += child.content
        elif child.type == "html_inline" and child.content.lower().startswith("<br"):
            lines.append("")
            kept.append(True)
        elif child.type in ("softbreak", "hardbreak"):
            lines.append("")
            kept.append(child.type == "hardbreak")
    words = lines[0]
    for line, keep in zip(lines[1:], kept[1:], strict=True):
        words += ("\n" if keep or LABEL.match(line) else " ") + line
    return words.strip()


def _without_tags(html: str) -> str:
    """The words of HTML inside Markdown."""
    if re.match(r"\s*<(script|style)\b", html, re.IGNORECASE):
        return ""
    return "\n".join(filter(None, (words(line) for line in _TAG.sub("\n", _COMMENT.sub("", html)).split("\n"))))
