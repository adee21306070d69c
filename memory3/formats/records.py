"""Files of records: each line or row with named values is a document.

JSON lines    {"key", "title", "text", "metadata"}; blank lines are skipped
CSV, TSV      columns `key` and `text`, perhaps `title`; all others are metadata
Parquet       the same, and perhaps a column `metadata`
"""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from memory3.errors import MissingFile
from memory3.formats.document import FileDocument

_FIELDS = ("key", "title", "text", "metadata")


def from_record(source: Path, place: str, values: object, *, others_are_metadata: bool = False) -> FileDocument:
    """The document of one record; a value that is missing or of a wrong type fails it.

    others_are_metadata: columns of other names belong to the metadata; otherwise they are mistakes.
    """
    try:
        return FileDocument(str(source), *_checked(values, others_are_metadata), place)
    except ValueError as error:
        return FileDocument.failed(source, error, place)


def _checked(values: object, others_are_metadata: bool) -> tuple[str, str, str, dict[str, str]]:
    if not isinstance(values, Mapping):
        raise ValueError("it is no JSON object")
    others = {name: value for name, value in values.items() if name not in _FIELDS}
    if others and not others_are_metadata:
        raise ValueError(f"unknown fields {', '.join(sorted(others))}; known: {', '.join(_FIELDS)}")
    key, text = values.get("key"), values.get("text")
    if not isinstance(key, str) or not isinstance(text, str):
        wrong = "text" if isinstance(key, str) else "key"
        raise ValueError(f"`{wrong}` {'must be a string' if wrong in values else 'is missing'}")
    title, metadata = values.get("title") or "", values.get("metadata") or {}
    if not isinstance(title, str) or not isinstance(metadata, Mapping):
        raise ValueError("`title` must be a string and `metadata` an object")
    # Filters compare values as text.
    given = {str(name): value for name, value in {**others, **metadata}.items() if value is not None}
    named = {name: as_text(value) for name, value in given.items()}
    for part in (key, text, title, *named, *named.values()):
        part.encode()  # JSON can spell half a surrogate pair, UTF-8 and the wire cannot: UnicodeEncodeError
    return key, title, text, named


def as_text(value: object) -> str:
    """A value of a record as filters compare it.

    Text as it is, dates and times in ISO 8601, decimals in plain digits, bytes as UTF-8, everything else as JSON.
    Raises ValueError for bytes that are not UTF-8.
    """
    if isinstance(value, (str, bytes, Decimal, date, time, timedelta)):
        return str(_plain(value))
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: object) -> str:
    """A value that JSON does not have, as text."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (date, time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"PT{format(Decimal(value // timedelta(microseconds=1)).scaleb(-6).normalize(), 'f')}S"
    return value.decode() if isinstance(value, bytes) else str(value)


def imported(module: str) -> Any:
    """A library of the extra `formats`; raises MissingFile that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingFile(f"reading it needs {module.split('.')[0]}: pip install {module.split('.')[0]}") from error


def read_jsonl(source: Path) -> Iterator[FileDocument]:
    """A document for each line."""
    with source.open("rb") as file:
        for number, line in enumerate(file, 1):
            place = f"line {number}"
            try:
                if line.strip():
                    yield from_record(source, place, json.loads(line.decode("utf-8-sig")))
            except (ValueError, RecursionError) as error:
                yield FileDocument.failed(source, error, place)


csv.field_size_limit(64 << 20)  # a document may be longer than the 128 KiB that are meant for cells


def _require_columns(names: Sequence[str]) -> None:
    if lacking := {"key", "text"} - set(names):
        raise ValueError(f"no column {' and '.join(sorted(lacking))}; columns: {', '.join(names) or 'none'}")
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise ValueError(f"more than one column {', '.join(twice)}")


def read_csv(source: Path) -> Iterator[FileDocument]:
    """A document for each row; what breaks the table ends it."""
    line = 0
    dialect = "excel-tab" if source.suffix.lower() == ".tsv" else "excel"
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, dialect=dialect, strict=True)
            _require_columns(table.fieldnames or ())
            for row in table:
                line = table.line_num
                if None in row or None in row.values():
                    why = "the row has more or fewer cells than the first line"
                    yield FileDocument.failed(source, why, f"line {line}")
                else:
                    values = {name: cell for name, cell in row.items() if cell or name in ("key", "text")}
                    yield from_record(source, f"line {line}", values, others_are_metadata=True)
    except (csv.Error, ValueError) as error:
        yield FileDocument.failed(source, error, f"after line {line}" if line else "line 1")


_BATCH_ROWS = 1024


def read_parquet(source: Path) -> Iterator[FileDocument]:
    """A document for each row, read some hundred at a time."""
    parquet, arrow = imported("pyarrow.parquet"), imported("pyarrow")
    number = 0
    try:
        with parquet.ParquetFile(source) as file:
            _require_columns(file.schema_arrow.names)
            for batch in file.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    number += 1
                    yield from_record(source, f"row {number}", row, others_are_metadata=True)
    except (arrow.ArrowException, ValueError) as error:
        yield FileDocument.failed(source, error, f"after row {number}" if number else "")
