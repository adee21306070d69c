"""Files of records: each line or row with named values is a document.

JSON lines    {"key", "title", "text", "metadata"}; blank lines are skipped
CSV, TSV      columns `key` and `text`, perhaps `title`; all others are metadata
Parquet       the same, and perhaps a column `metadata`
"""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_model.errors import MissingFile

_FIELDS = ("key", "title", "text", "metadata")


@dataclass(frozen=True)
class SourceDocument:
    """One document of a file. `number` counts from 0 in the file; `error` says why it is none, else it is empty.

    place: where in the file it is, such as "line 3"; empty where the file is the document.
    """

    source: Path
    number: int
    key: str
    title: str = ""
    text: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    error: str = ""
    place: str = ""

    @property
    def where(self) -> str:
        """For people: the file, the place in it, and the key where it is another name."""
        parts = [str(self.source), self.place, f"key {self.key}" if self.key != str(self.source) else ""]
        return ", ".join(part for part in parts if part)


def from_record(
    source: Path, number: int, place: str, values: object, *, others_are_metadata: bool = False
) -> SourceDocument:
    """The document of one record; a value that is missing or of a wrong type becomes its error.

    others_are_metadata: columns of other names belong to the metadata; otherwise they are mistakes.
    """
    try:
        key, title, text, metadata = _checked(values, others_are_metadata)
    except ValueError as error:
        return SourceDocument(source, number, str(source), error=str(error), place=place)
    return SourceDocument(source, number, key, title, text, metadata, place=place)


def _checked(values: object, others_are_metadata: bool) -> tuple[str, str, str, dict[str, str]]:
    if not isinstance(values, Mapping):
        raise ValueError("it is no JSON object")
    others = {name: value for name, value in values.items() if name not in _FIELDS}
    if others and not others_are_metadata:
        raise ValueError(f"unknown fields {', '.join(sorted(others))}; known: {', '.join(_FIELDS)}")
    key, text = values.get("key"), values.get("text")
    if not isinstance(key, str) or not isinstance(text, str):
        raise ValueError("`key` and `text` must be strings")
    title, metadata = values.get("title") or "", values.get("metadata") or {}
    if not isinstance(title, str) or not isinstance(metadata, Mapping):
        raise ValueError("`title` must be a string and `metadata` an object")
    named = {
        str(name): _as_text(value) for name, value in {**others, **metadata}.items() if value is not None
    }
    for part in (key, text, title, *named, *named.values()):
        part.encode()  # JSON can spell half a surrogate pair, UTF-8 and the wire cannot: UnicodeEncodeError
    return key, title, text, named


def _as_text(value: Any) -> str:
    """A metadata value as the string it is compared as: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def unreadable(error: Exception) -> str:
    """What is wrong with a file's bytes, for people."""
    if isinstance(error, UnicodeDecodeError):
        return f"not valid UTF-8 at byte {error.start}: convert the file"
    return str(error) or type(error).__name__


def imported(module: str) -> Any:
    """A library of the extra `formats`; raises MissingFile that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingFile(
            f"reading this kind of file needs {module.split('.')[0]}: pip install 'memory3-service[formats]'"
        ) from error


def read_jsonl(source: Path) -> Iterator[SourceDocument]:
    """A document for each line."""
    with source.open("rb") as file:
        number = 0
        for line_number, line in enumerate(file, 1):
            if line.strip():
                yield _of_line(source, number, f"line {line_number}", line)
                number += 1


def count_jsonl(source: Path) -> int:
    """Lines that are not blank."""
    with source.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _of_line(source: Path, number: int, place: str, line: bytes) -> SourceDocument:
    try:
        values = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return SourceDocument(source, number, str(source), error=unreadable(error), place=place)
    return from_record(source, number, place, values)


csv.field_size_limit(64 << 20)  # a document may be longer than the 128 KiB that are meant for cells


def _csv_rows(source: Path) -> Iterator[tuple[int, dict[str, str]]]:
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


def read_csv(source: Path) -> Iterator[SourceDocument]:
    """A document for each row; what breaks the table ends it."""
    number, line = 0, 0
    try:
        for number, (line, row) in enumerate(_csv_rows(source)):
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


def count_csv(source: Path) -> int:
    """Rows."""
    rows = 0
    try:
        for _ in _csv_rows(source):
            rows += 1
    except (csv.Error, ValueError):
        rows += 1
    return rows


_BATCH_ROWS = 1024


def read_parquet(source: Path) -> Iterator[SourceDocument]:
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


def count_parquet(source: Path) -> int:
    """Rows, from the file's footer."""
    parquet, arrow = imported("pyarrow.parquet"), imported("pyarrow")
    try:
        return int(parquet.read_metadata(source).num_rows) or 1
    except arrow.ArrowException:
        return 1
