"""Plain text in UTF-8: the file is the document, its name the title."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from memory_service.client.formats.source_document import SourceDocument, unreadable


def read(source: Path) -> Iterator[SourceDocument]:
    """One document."""
    return of_text(source, lambda text, title: (title, text))


def of_text(source: Path, parse: Callable[[str, str], tuple[str, str]]) -> Iterator[SourceDocument]:
    """One document of a file in UTF-8; `parse` makes (title, text) of its text and of the title its name gives."""
    try:
        title, text = parse(source.read_bytes().decode("utf-8-sig"), title_of(source))
    except UnicodeDecodeError as error:
        yield SourceDocument(source, 0, str(source), error=unreadable(error))
        return
    yield SourceDocument(source, 0, str(source), title, text)


def title_of(source: Path) -> str:
    """A title from the file's name."""
    return source.stem.replace("_", " ")
