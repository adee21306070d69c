"""What a person types: with history, several lines and completion in a terminal, line by line from anything else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.output import Output

PROMPT = "you> "
GO_ON = "...> "


class TypedText(Protocol):
    """Where messages and commands come from."""

    def read(self) -> str | None:
        """What was typed next, without spaces around it; None at the end. Raises KeyboardInterrupt for Ctrl-C."""


class TypedLines:
    """From a pipe or a file: a message a line; a line that ends in a backslash goes on in the next one."""

    def read(self) -> str | None:
        """See TypedText."""
        lines: list[str] = []
        for line in iter(sys.stdin.readline, ""):
            lines.append(line.rstrip("\n"))
            if not lines[-1].endswith("\\"):
                break
            lines[-1] = lines[-1][:-1]
        return "\n".join(lines).strip() if lines else None


class TypedAtTerminal:
    """From a keyboard: Enter sends, Alt-Enter (Esc, Enter) begins a line; arrow keys and Ctrl-R find what was said.

    commands: completed after a slash. history: the file that keeps what was typed, readable by its owner alone.
    source, target: of prompt_toolkit; the terminal unless a test names others.
    """

    def __init__(
        self, commands: Sequence[str], history: Path | None = None, *, source: Input | None = None,
        target: Output | None = None,
    ) -> None:  # fmt: skip
        self._session: PromptSession[str] = PromptSession(
            history=None if history is None else FileHistory(str(_private(history))), multiline=True,
            completer=WordCompleter(list(commands), sentence=True), complete_while_typing=False,
            key_bindings=_keys(), prompt_continuation=lambda *_: GO_ON, input=source, output=target,
        )  # fmt: skip

    def read(self) -> str | None:
        """See TypedText."""
        try:
            return self._session.prompt(PROMPT).strip()
        except EOFError:
            return None


def history_file() -> Path:
    """`memory3-edge/chat-history` in the user's state folder (XDG_STATE_HOME)."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "memory3-edge" / "chat-history"


def _private(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return path


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
