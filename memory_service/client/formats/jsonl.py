"""JSON lines: a line is a document, {"key", "title", "text", "metadata"}; blank lines are skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from memory_service.client.formats.source_document import SourceDocument, from_record, unreadable


def read(source: Path) -> Iterator[SourceDocument]:
    """A document for each line."""
    with source.open("rb") as file:
        number = 0
        for line_number, line in enumerate(file, 1):
            if line.strip():
                yield _of_line(source, number, f"line {line_number}", line)
                number += 1


def count(source: Path) -> int:
    """Lines that are not blank."""
    with source.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _of_line(source: Path, number: int, place: str, line: bytes) -> SourceDocument:
    try:
        values = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return SourceDocument(source, number, str(source), error=unreadable(error), place=place)
    return from_record(source, number, place, values)
