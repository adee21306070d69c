"""Tables as text: lines of "column: value" pairs, so that a reference of a part of a table is understood alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

_LONGEST_LINE = 320
"""Characters: less than a reference of 128 tokens, so that it is not cut within a row."""
_NARROW = 8
"""Columns of a table whose values have a line each."""
_NUMBER = re.compile(r"[\s\d.,:;/%€$£+()-]*\d[\s\d.,:;/%€$£+()-]*")


def table_lines(rows: Sequence[Sequence[str]], *, headed: bool | None = None) -> list[str]:
    """A line for each value of a row, its first cell in front: "printer: Bero; room: 14". What is empty is left out.

    headed: whether the first row names the columns; None if undefined. A row that fills one of several
    columns is a caption or a section, and stays a line of its own. Names of columns without a value are listed. Without
    names, cells are joined by " | ".
    """
    rows = _trimmed([[" ".join(cell.split()) for cell in row] for row in rows])
    lines: list[str] = []
    while headed is not True and rows and len(rows[0]) > 1 and sum(map(bool, rows[0])) == 1:  # above the names
        lines.append(next(filter(None, rows[0])))
        rows = rows[1:]
    if not rows:
        return lines
    if len(rows[0]) == 1:
        return [*lines, *(row[0] for row in rows)]
    if headed is None:
        headed = _names_columns(rows)
    if not headed:
        return [*lines, *(_unnamed(row) for row in rows)]
    names, *rows = rows
    body: list[str] = []
    with_values: set[str] = set()
    for row in rows:
        filled = _filled(names, row)
        if len(filled) == 1 and len(names) > 2 and row[0]:
            body.append(row[0])
            continue
        with_values |= {name for name, _ in filled}
        body += _row_lines([f"{name.rstrip(':')}: {cell}" if name else cell for name, cell in filled])
    empty = [name for name in dict.fromkeys(filter(None, names)) if name not in with_values]
    if not with_values:
        lines.append(_unnamed(names))
    elif empty:
        body.append(f"without a value: {', '.join(empty)}")
    lines += body
    return [line for line in lines if line]


def _filled(names: Sequence[str], row: Sequence[str]) -> list[tuple[str, str]]:
    """Names and cells that are not empty; neighbours of one name are one."""
    found: list[tuple[str, str]] = []
    for name, cell in zip(names, row, strict=True):
        if cell and found and name and found[-1][0] == name:
            found[-1] = (name, f"{found[-1][1]}, {cell}" if cell != found[-1][1].rpartition(", ")[2] else found[-1][1])
        elif cell:
            found.append((name, cell))
    return found


def _row_lines(pairs: Sequence[str]) -> list[str]:
    """A row as a line for each of its values after the first pair; of a wide table, as few lines as are short enough.

    The default model copies a value exactly twice as often from a line that has no other values (decision 0050).
    """
    if 2 < len(pairs) <= _NARROW and len(pairs[0]) < _LONGEST_LINE // 3:
        return [f"{pairs[0]}; {pair}" for pair in pairs[1:]]
    lines: list[str] = []
    for pair in pairs:
        if lines and len(lines[-1]) + len(pair) > _LONGEST_LINE and lines[-1] != pairs[0]:
            lines.append(f"{pairs[0]}; {pair}" if len(pairs[0]) < _LONGEST_LINE // 3 else pair)
        else:
            lines[-1:] = [f"{lines[-1]}; {pair}" if lines else pair]
    return lines


def _trimmed(rows: list[list[str]]) -> list[list[str]]:
    """Rows of equal length without empty rows and columns."""
    width = max((len(row) for row in rows), default=0)
    filled = [row + [""] * (width - len(row)) for row in rows if any(row)]
    used = [column for column in range(width) if any(row[column] for row in filled)]
    return [[row[column] for column in used] for row in filled]


def _names_columns(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first row that is not marked as such names the columns: words, all different, none of them a value."""
    first = [cell.rstrip(":") for cell in rows[0] if cell]
    different = [name for name, _ in itertools.groupby(first)]  # a cell over two columns names both
    if len(rows) < 2 or len(set(different)) < max(2, len(different)) or len(first) < max(2, len(rows[0]) - 1):
        return False
    if len(rows[0]) == 2 and any(row[0].endswith(":") for row in rows):
        return False  # labels and values
    return not any(_NUMBER.fullmatch(cell) or len(cell) > 80 for cell in first)


def _unnamed(row: Sequence[str]) -> str:
    """Two cells are a label and its value, more are cells."""
    cells = [cell for cell in row if cell]
    if len(row) == 2 and len(cells) == 2 and not _NUMBER.fullmatch(cells[0]):
        return f"{cells[0].rstrip(':')}: {cells[1]}"
    return " | ".join(cells)
