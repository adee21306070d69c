"""The group of a program's commands: what is refused is one line on stderr and exit code 1, a bug has a traceback."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from memory_model.errors import Memory3Error
from memory_model.printable import printable


class Commands(TyperGroup):
    """Errors of ours, and the system's about a file, as one line for people."""

    interrupted = "interrupted"

    def invoke(self, ctx: Any) -> Any:
        """See TyperGroup."""
        try:
            return super().invoke(ctx)
        except (Memory3Error, OSError) as error:
            said = str(error)
            if not isinstance(error, Memory3Error):
                if error.filename is None:
                    raise
                said = f"{error.filename}: {error.strerror}"
            _show(Text.assemble(("error:", "bold red"), f" {printable(said)}"))
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            _show(Text(self.interrupted))
            raise typer.Exit(130) from error


def _show(line: Text) -> None:
    Console(stderr=True).print(line, soft_wrap=True)
