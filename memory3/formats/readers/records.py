"""Files of records: each line or row with named values is a document.

JSON lines    {"key", "title", "text", "metadata"}; blank lines are skipped
CSV, TSV      columns `text` and perhaps `key` and `title`, all others are metadata; or any columns, whose values become
              lines "column: value". Delimiter and encoding are detected
Parquet       the same, and perhaps a column `metadata`
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from memory3.formats.document import FileDocument, title_of
from memory3.formats.encoding import decode
from memory3.formats.libraries import imported

_FIELDS = ("key", "title", "text", "metadata")


def from_record(source: Path, position: str, values: object, *, others_are_metadata: bool = False) -> FileDocument:
    """The document of one record; a value that is missing or of a wrong type fails it.

    others_are_metadata: columns of other names belong to the metadata; otherwise they are mistakes.
    """
    try:
        return FileDocument(str(source), *_checked(values, others_are_metadata), position)
    except ValueError as error:
        return FileDocument.failed(source, error, position)


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
    if not key.strip():
        raise ValueError("`key` is empty")
    title, metadata = values.get("title") or "", values.get("metadata") or {}
    if not isinstance(title, str) or not isinstance(metadata, Mapping):
        raise ValueError("`title` must be a string and `metadata` an object")
    # Filters compare values as text.
    given = {str(name): value for name, value in {**others, **metadata}.items() if value is not None}
    named = {name: as_text(value) for name, value in given.items()}
    for part in (key, text, title, *named, *named.values()):
        part.encode()  # JSON can hold half a surrogate pair, UTF-8 and the wire cannot: UnicodeEncodeError
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


def read_jsonl(source: Path) -> Iterator[FileDocument]:
    """A document for each line."""
    with source.open("rb") as file:
        for number, line in enumerate(file, 1):
            position = f"line {number}"
            try:
                if line.strip():
                    yield from_record(source, position, json.loads(line.decode("utf-8-sig")))
            except (ValueError, RecursionError) as error:
                yield FileDocument.failed(source, error, position)


csv.field_size_limit(64 << 20)  # a document may be longer than the 128 KiB that are meant for cells


_SAMPLE_LINES, _MOST_TITLES = 20, 3
_VALUE = re.compile(r"[\s\d.,:/%€$£+-]*\d[\s\d.,:/%€$£+-]*")
_YEAR = r"(?:1[5-9]|2[01])\d\d"
_PERIOD = re.compile(rf"{_YEAR}(?:[-/.]\d{{1,4}}){{0,2}}|(?:\d{{1,2}}[-/.]){{1,2}}{_YEAR}|\d{{1,2}}:\d\d")
"""A year, a month, a day or a time."""
_QUOTING: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, ""),
    ({"doublequote": False, "escapechar": "\\"}, "quotes in its cells follow a backslash"),
    ({"quoting": csv.QUOTE_NONE}, "its quotes do not match, and are read as characters"),
)
"""How quotes are written, the likeliest first, and what to report."""


def _columns(names: Sequence[str]) -> list[str]:
    """The names of columns, made different; raises ValueError where a column of ours is there twice."""
    found: list[str] = []
    for number, name in enumerate(names, 1):
        name = " ".join((name or "").split()) or f"column {number}"
        if name in found and name in _FIELDS:
            raise ValueError(f"more than one column {name}")
        found.append(name if name not in found else f"{name} {number}")
    return found


def _row_document(source: Path, position: str, number: int, values: dict[str, Any]) -> FileDocument:
    """The document of a row: of its column `text`, or of all its columns as lines "column: value".

    Without a column `key`, the number of the row names it; without `title`, its first cell that has a letter.
    """
    given = {name: value for name, value in values.items() if value not in (None, "")}
    key = values.get("key", f"{source}#row={number}")
    if "text" in values:
        values = {**given, "key": key, "text": values["text"]}
        return from_record(source, position, values, others_are_metadata=True)
    try:
        cells = {name: as_text(value) for name, value in given.items() if name not in ("key", "title", "metadata")}
    except ValueError as error:
        return FileDocument.failed(source, error, position)
    first = next((cell for cell in cells.values() if any(char.isalpha() for char in cell)), "")
    title = given.get("title") or (first if 0 < len(first) <= 80 else "") or title_of(source)
    text = "\n".join(f"{name.rstrip(':')}: {' '.join(cell.split())}" for name, cell in cells.items())
    record = {
        "key": key if key is None else as_text(key),
        "title": as_text(title),
        "text": text,
        "metadata": given.get("metadata"),
    }
    return from_record(source, position, record)


def read_csv(source: Path) -> Iterator[FileDocument]:
    """A document for each row; what breaks the table ends it."""
    line = number = 0
    try:
        read = decode(source.read_bytes())
        text, dialect, note = _dialect(read.text, source.suffix.lower() == ".tsv")
        notes = [read.note]
        if dialect["delimiter"] not in ",\t":
            notes.append(f"cells are separated by {dialect['delimiter']!r}")
        table = csv.reader(io.StringIO(text, newline=""), strict=True, **dialect)
        filled = ((table.line_num, row) for row in table if any(row))
        head = list(itertools.islice(filled, _SAMPLE_LINES))
        if not head:
            raise ValueError("no columns: the table is empty")
        above = _above([row for _, row in head])
        (_, first), rows = head[above], itertools.chain(head[above + 1 :], filled)
        titles = " / ".join(" ".join(" ".join(row).split()) for _, row in head[:above])
        notes += [note, f"above its columns: {titles}" if above else ""]
        names = _columns(first)
        numbers = not {*_FIELDS} & {*names} and any(map(_VALUE.fullmatch, first))
        if numbers and _holds_values(first, [row for _, row in head[above + 1 :]]):
            names = [f"column {n}" for n in range(1, len(first) + 1)]
            notes.append("its first line holds values, so its columns have no names")
            rows = itertools.chain(head[above:], filled)
        elif numbers:
            notes.append("its first line was taken for the names of its columns, although it has numbers")
        for line, row in rows:
            number += 1
            if len(row) > len(names) and any(row[len(names) :]):
                why = f"the row has {len(row)} cells, the first line {len(names)}"
                yield FileDocument.failed(source, why, f"line {line}")
                continue
            cells = [*row, *[""] * (len(names) - len(row))]
            yield _row_document(source, f"line {line}", number, dict(zip(names, cells, strict=False))).noted(*notes)
            notes = []
    except (csv.Error, ValueError) as error:
        yield FileDocument.failed(source, error, f"after line {line}" if line else "line 1")


def _dialect(text: str, tabs: bool) -> tuple[str, dict[str, Any], str]:
    """A table, how csv reads it, and what was assumed of its quotes.

    The delimiter is that of Excel's line `sep=;`, or the one with which most rows have as many cells as the names of
    the columns; then one that needs no assumption of quotes, and no line left out above the names.
    """
    delimiters = "\t,;|" if tabs else ",;\t|"
    if found := re.match(r"sep=(.)\r?\n", text):
        text, delimiters = text[found.end() :], found[1]
    best, best_score = ({"delimiter": delimiters[0]}, ""), (-1.0, 0, 0, 0)
    for delimiter in delimiters:
        if delimiter not in text and delimiter != delimiters[0]:
            continue
        for way, (options, note) in enumerate(_QUOTING):
            dialect = {"delimiter": delimiter, **options}
            try:
                filled = (row for row in csv.reader(io.StringIO(text, newline=""), strict=True, **dialect) if any(row))
                head = list(itertools.islice(filled, _SAMPLE_LINES))
                widths = Counter(map(len, itertools.chain(head, filled)))
            except csv.Error:
                continue
            above = _above(head)
            width = len(head[above]) if head else 0
            score = (widths[width] / widths.total() if width > 1 else 0.0, -way, -above, width)
            if score > best_score:
                best, best_score = (dialect, note), score
            break
    return text, *best


def _above(rows: Sequence[Sequence[str]]) -> int:
    """How many of a table's first rows stand above the names of its columns: comments and titles."""
    names = next((number for number, row in enumerate(rows) if not row[0].startswith("#")), 0)
    if names and any(len(row) == len(rows[names]) for row in rows[:names]):
        names = 0  # `#id,name` is the names
    titles = next((number for number, row in enumerate(rows[names:]) if sum(map(bool, row)) > 1), 0)
    below = rows[names + titles :]
    named = len(below) > 1 and len(below[0]) == len(below[1]) and not _holds_values(below[0], below[1:])
    return names + (titles if titles <= _MOST_TITLES and named else 0)


def _holds_values(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first row is one of values, as those below it, and does not name the columns.

    It has a value wherever they mostly have one. Years and counts are names, unless the rows below have such as well,
    and so are whole numbers in less than half of its cells.
    """
    values = [cell.strip() for cell in first if _VALUE.fullmatch(cell)]
    if not values or not rows:
        return bool(values)
    if _counts(first) and not all(map(_counts, rows)):
        return False
    if all(map(str.isdecimal, values)) and 2 * len(values) < sum(map(bool, first)) and not _counts(first):
        return False
    columns = [list(filter(None, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    mostly = [2 * sum(map(bool, map(_VALUE.fullmatch, column))) > len(column) for column in columns]
    fits = [not cell or bool(_VALUE.fullmatch(cell)) for cell, has in zip(first, mostly, strict=False) if has]
    return bool(fits) and all(fits)


def _counts(row: Sequence[str]) -> bool:
    """Whether all values of a row are years, dates or times, or small integers in equal steps."""
    values = [cell.strip() for cell in row if _VALUE.fullmatch(cell)]
    if all(map(_PERIOD.fullmatch, values)):
        return True
    if not all(value.isdecimal() and len(value) < 5 for value in values):
        return False
    numbers = list(map(int, values))
    steps = {after - before for before, after in itertools.pairwise(numbers)}
    return len(steps) == 1 and min(steps) > 0 and (len(numbers) > 2 or numbers in ([0, 1], [1, 2]))


_BATCH_ROWS = 1024


def read_parquet(source: Path) -> Iterator[FileDocument]:
    """A document for each row, read some hundred at a time."""
    parquet, arrow = imported("pyarrow.parquet"), imported("pyarrow")
    number = 0
    try:
        with parquet.ParquetFile(source) as file:
            _columns(file.schema_arrow.names)
            for batch in file.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    number += 1
                    yield _row_document(source, f"row {number}", number, row)
    except arrow.ArrowException as error:
        yield FileDocument.broken(source, "Parquet file", error, f"after row {number}" if number else "")
    except ValueError as error:
        yield FileDocument.failed(source, error, f"after row {number}" if number else "")
