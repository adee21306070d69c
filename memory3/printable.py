"""What programs show on a terminal: other people's text moves no cursor and hides no line; a refusal is one line."""

from __future__ import annotations

import shutil
import time
from typing import Any, TextIO

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.filesize import decimal
from rich.progress import DownloadColumn, Progress, TaskID
from rich.text import Text
from typer.core import TyperGroup

from memory3 import __version__
from memory3.errors import Memory3Error

_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_PICTURES |= {0x7F: 0x2421, **dict.fromkeys(range(0x80, 0xA0), 0xFFFD)}


def printable(text: str) -> str:
    """The text with pictures for control characters; tabs and ends of lines stay."""
    return text.translate(_PICTURES)


class Wrapped:
    """Text that comes in pieces, on a terminal broken between words; a program that reads it gets it as it is.

    A word is written when it is whole, at the end of the block at the latest, which ends the line.
    """

    def __init__(self, stream: TextIO, width: int = 0) -> None:
        """width: of the terminal, if not its own."""
        self._stream, self._wraps = stream, stream.isatty()
        self._width = width or shutil.get_terminal_size().columns
        self._word, self._space, self._column = "", "", 0

    def write(self, text: str) -> None:
        """Write what is known to stay on its line."""
        if not self._wraps:
            print(text, end="", file=self._stream, flush=True)
            return
        for letter in printable(text):
            if letter == "\n":
                self._write_word()
                print(file=self._stream)
                self._space, self._column = "", 0
            elif letter in " \t":
                self._write_word()
                self._space += letter
            else:
                self._word += letter
                if cell_len(self._word) >= self._width:  # a word without an end, or a script without spaces
                    self._write_word()
        self._stream.flush()

    def _write_word(self) -> None:
        if not self._word:
            return
        needed = cell_len(self._space.expandtabs() + self._word)
        if self._column and self._column + needed > self._width:
            print(file=self._stream)
            self._space, self._column, needed = "", 0, cell_len(self._word)
        print(self._space + self._word, end="", file=self._stream)
        self._column += needed
        self._word = self._space = ""

    def __enter__(self) -> Wrapped:
        return self

    def __exit__(self, *_: object) -> None:
        self._write_word()
        print(file=self._stream, flush=True)


def version_option(program: str) -> Any:
    """The option `--version` of a command's callback."""

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{program} {__version__}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="Show the version.")


def counted(number: int, noun: str) -> str:
    """`1 document`, `2 documents`, `3 memories`: a number with its noun, which is given for one."""
    plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def refused_by_system(error: OSError) -> str:
    """What the system refused, and the file if it names one: writing to a pipe or a full disk names none."""
    why = error.strerror or str(error)
    return why if error.filename is None else f"{error.filename}: {why}"


class Bars(Progress):
    """Progress bars; where there is no terminal to draw them, lines, one in half a minute at most."""

    printed_s = 0.0

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """See Progress."""
        self.update(task_id, advance=advance)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """See Progress."""
        super().update(task_id, **changes)
        if not (self.disable or self.console.is_terminal or time.monotonic() < self.printed_s + 30):
            self.printed_s, task = time.monotonic(), self._tasks[task_id]
            size = decimal if any(isinstance(column, DownloadColumn) for column in self.columns) else "{:,}".format
            counts = [size(round(number)) for number in (task.completed, task.total) if number is not None]
            what, count = task.description.strip(), " of ".join(counts)
            self.console.print(what if count in what else f"{what}: {count}", soft_wrap=True, markup=False)


class Program(TyperGroup):
    """The commands of a program; a wrong value is refused without the name that pydantic gives its errors."""

    def invoke(self, ctx: Any) -> Any:
        """See TyperGroup."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


class Commands(Program):
    """Errors of ours, and the system's about a file, as one line for people."""

    interrupted = "interrupted"

    def invoke(self, ctx: Any) -> Any:
        """See Program."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # who reads the output has had enough
            raise
        except (Memory3Error, OSError) as error:
            message = str(error) if isinstance(error, Memory3Error) else refused_by_system(error)
            line, code = Text.assemble(("error:", "bold red"), f" {printable(message)}"), 1
        except KeyboardInterrupt:
            line, code = Text(self.interrupted), 130
        Console(stderr=True).print(line, soft_wrap=True)
        raise typer.Exit(code)
