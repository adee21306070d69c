"""Progress where there is no terminal: one line, in numbers that people read."""

import io

import pytest
from rich.console import Console
from rich.progress import DownloadColumn, ProgressColumn, TextColumn

from memory3.printable import Bars


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ((DownloadColumn(),), "model: 1.1 GB of 2.2 GB\n"),
        ((TextColumn("{task.completed}"),), "model: 1,117,320,000 of 2,200,000,000\n"),
    ],
)
def test_a_line_of_progress_has_bytes_as_gigabytes_and_counts_whole(
    columns: tuple[ProgressColumn, ...], line: str
) -> None:
    output = io.StringIO()
    with Bars(*columns, console=Console(file=output, width=100)) as bars:
        bars.update(bars.add_task("model", total=2_200_000_000), completed=1_117_320_000)
        first = output.getvalue()
    assert first == line
