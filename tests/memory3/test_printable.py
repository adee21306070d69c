"""Progress where there is no terminal, and what a system refuses: one line that people read."""

import errno
import io
from typing import Annotated, Literal

import pytest
import typer
from rich.console import Console
from rich.progress import DownloadColumn, ProgressColumn, TextColumn
from typer.testing import CliRunner

from memory3.printable import Bars, Commands, Program


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


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "error: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/file"), "error: /a/file: Permission denied\n"),
    ],
)
def test_what_the_system_refuses_is_one_line(refused: OSError, said: str) -> None:
    app = typer.Typer(cls=Commands)

    @app.callback()
    def main() -> None: ...

    @app.command()
    def write() -> None:
        raise refused

    result = CliRunner().invoke(app, ["write"])
    assert (result.exit_code, result.stderr) == (1, said)


@pytest.mark.parametrize("kind", [Program, Commands])
def test_a_wrong_choice_is_refused_with_the_choices_alone(kind: type[Program]) -> None:
    app = typer.Typer(cls=kind)

    @app.callback()
    def main() -> None: ...

    @app.command()
    def ask(memory: Annotated[Literal["exact", "off"], typer.Option()] = "off") -> None: ...

    result = CliRunner().invoke(app, ["ask", "--memory", "none"], env={"COLUMNS": "120"})
    assert (result.exit_code, "'none' is not one of 'exact', 'off'" in result.stderr) == (2, True)
    assert "Value error" not in result.stderr
