"""The terminal: what a person types, an answer while it comes, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.output import Output
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from edge_client.cli import show
from edge_client.events import Event, Finished, Recalled, Token
from memory_model.printable import printable, shown_on

PROMPT = "you> "
GO_ON = "...> "
REFRESHES_PER_S = 12
LEAST_LINES = 4
"""Of the text: in a terminal too low for them no memories are shown below."""


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


def at_terminal() -> bool:
    """Whether a person reads and types."""
    return sys.stdin.isatty() and sys.stdout.isatty()


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


class AnswerView:
    """One answer so far: its last lines, below them what the last chunk reads; never higher than the terminal."""

    def __init__(self) -> None:
        self.text = ""
        self.recalls: list[Recalled] = []
        self.finished: Finished | None = None

    def take(self, event: Event) -> None:
        """Add an event."""
        if isinstance(event, Token):
            self.text += event.text
        elif isinstance(event, Recalled):
            self.recalls.append(event)
        elif isinstance(event, Finished):
            self.finished = event

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height, table = console.size.height - 2, show.memories_table(self.recalls[-1:], texts=False)
        below = len(console.render_lines(table, options))
        if not self.recalls or height - below < LEAST_LINES:
            below = 0
        yield Text("\n").join(Text(printable(self.text)).wrap(console, options.max_width)[below - height :])
        if below:
            yield table


def show_plain(events: Iterable[Event]) -> AnswerView:
    """Write an answer's tokens to standard output as they come."""
    view = AnswerView()
    for event in events:
        view.take(event)
        if isinstance(event, Token):
            print(shown_on(sys.stdout, event.text), end="", flush=True)
    print(flush=True)
    return view


def show_live(events: Iterable[Event], console: Console) -> AnswerView:
    """Follow an answer in the terminal, with the memories it reads below; at its end its whole text stays."""
    view = AnswerView()
    with Live(view, console=console, refresh_per_second=REFRESHES_PER_S, transient=True):
        for event in events:
            view.take(event)
    console.print(Text(printable(view.text)))
    return view


@contextmanager
def on_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """While the block lasts, Ctrl-C runs `call` in a thread of its own, which may take locks, and raises nothing.

    Outside the main thread, where Python handles no signals, the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_: int, __: FrameType | None) -> None:
        threading.Thread(target=call, name="memory3-interrupt", daemon=True).start()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
