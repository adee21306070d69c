"""Parquet: a row is a document; columns `key` and `text`, perhaps `title` and `metadata`; all others are metadata."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memory_service.client.formats.source_document import SourceDocument, from_record, imported, unreadable

_BATCH_ROWS = 1024


def read(source: Path) -> Iterator[SourceDocument]:
    """A document for each row, read some hundred at a time."""
    parquet, arrow = imported("pyarrow.parquet"), imported("pyarrow")
    number = 0
    try:
        with parquet.ParquetFile(source) as file:
            names = file.schema_arrow.names
            if lacking := {"key", "text"} - set(names):
                raise ValueError(f"no column {' and '.join(sorted(lacking))}; columns: {', '.join(names)}")
            for batch in file.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    yield from_record(source, number, f"row {number + 1}", row, others_are_metadata=True)
                    number += 1
    except (arrow.ArrowException, ValueError) as error:
        place = f"after row {number}" if number else ""
        yield SourceDocument(source, number, str(source), error=unreadable(error), place=place)


def count(source: Path) -> int:
    """Rows, from the file's footer."""
    parquet, arrow = imported("pyarrow.parquet"), imported("pyarrow")
    try:
        return int(parquet.read_metadata(source).num_rows) or 1
    except arrow.ArrowException:
        return 1
