"""Rows for people, in columns that are never cut: what a command lists, another one takes."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.cells import cell_len, set_cell_size

from memory3.printable import printable

_GAP = "  "


def show_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Names of the columns, then a line for each row; a line longer than the terminal goes on in the next one."""
    lines = [names, *([printable(" ".join(cell.split())) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (set_cell_size(cell, width) for cell, width in zip(line, widths, strict=True))
        typer.echo(_GAP.join(cells).rstrip())
