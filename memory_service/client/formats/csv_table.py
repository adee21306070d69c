"""CSV and TSV: a row is a document; columns `key` and `text`, perhaps `title`; all others are metadata."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from memory_service.client.formats.source_document import SourceDocument, from_record, unreadable

csv.field_size_limit(64 << 20)  # a document may be longer than the 128 KiB that are meant for cells


def _rows(source: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Pairs (line, row by column); raises ValueError and csv.Error."""
    with source.open(encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(
            file, dialect="excel-tab" if source.suffix.lower() == ".tsv" else "excel", strict=True
        )
        if lacking := {"key", "text"} - set(table.fieldnames or ()):
            names = ", ".join(table.fieldnames or ()) or "none"
            raise ValueError(f"no column {' and '.join(sorted(lacking))} in the first line; columns: {names}")
        for row in table:
            yield table.line_num, row


def read(source: Path) -> Iterator[SourceDocument]:
    """A document for each row; what breaks the table ends it."""
    number, line = 0, 0
    try:
        for number, (line, row) in enumerate(_rows(source)):
            place = f"line {line}"
            if None in row or None in row.values():
                error = "the row has more or fewer cells than the first line"
                yield SourceDocument(source, number, str(source), error=error, place=place)
            else:
                values = {name: cell for name, cell in row.items() if cell or name in ("key", "text")}
                yield from_record(source, number, place, values, others_are_metadata=True)
    except (csv.Error, ValueError) as error:
        place = f"after line {line}" if line else "line 1"
        yield SourceDocument(source, number + bool(line), str(source), error=unreadable(error), place=place)


def count(source: Path) -> int:
    """Rows."""
    rows = 0
    try:
        for _ in _rows(source):
            rows += 1
    except (csv.Error, ValueError):
        rows += 1
    return rows
