"""The conversation in a terminal: typing, the pane, the commands, and Ctrl-C in a real one."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from edge_client.cli.chat import COMMANDS
from edge_client.cli.terminal import AnswerView, TypedAtTerminal, TypedLines, show_live
from edge_client.model import EdgeModel
from memory_model.bundle import Bundle
from memory_model.printable import printable, shown_on
from tests.edge_client.fake_service import FakeService

PROGRAM = Path(sys.executable).parent / "edge-client"
QUESTION = "What is the code of Lima?"
WAIT_S = 60.0


def typed(keys: str, history: Path | None = None, messages: int = 1) -> list[str | None]:
    with create_pipe_input() as source:
        source.send_text(keys)
        terminal = TypedAtTerminal(COMMANDS, history, source=source, target=DummyOutput())
        return [terminal.read() for _ in range(messages)]


def test_enter_sends_and_alt_enter_begins_a_line() -> None:
    assert typed("one\x1b\rtwo\r") == ["one\ntwo"]
    assert typed("\x04") == [None], "Ctrl-D is the end"
    with pytest.raises(KeyboardInterrupt):
        typed("half a\x03")


def test_what_was_typed_is_found_again_by_the_next_run_and_by_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "state" / "history"
    assert typed("first\rsecond\r", file, messages=2) == ["first", "second"]
    assert typed("\x1b[A\x1b[A\r", file) == ["first"]
    assert file.stat().st_mode & 0o077 == 0


def test_a_line_from_a_pipe_goes_on_after_a_backslash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one \\\ntwo\n\nthree"))
    lines = TypedLines()
    assert [lines.read() for _ in range(4)] == ["one \ntwo", "", "three", None]


def test_below_an_answer_stands_what_it_reads(model: EdgeModel) -> None:
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True, record=True)
    view = show_live(model.generate(QUESTION, max_tokens=40, temperature=50.0, seed=3), console)
    assert view.finished is not None
    assert printable(view.text).strip() in console.export_text()
    still = Console(file=io.StringIO(), width=100, height=30, record=True)
    still.print(view)
    shown = still.export_text()
    assert "(generated)" in shown
    assert "Title" in shown


@pytest.mark.parametrize(("width", "height"), [(90, 12), (40, 20)])
def test_a_long_answer_is_never_higher_than_the_terminal(model: EdgeModel, width: int, height: int) -> None:
    view = AnswerView()
    for event in model.generate(QUESTION, max_tokens=2):
        view.take(event)
    view.text += "word " * 2000
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    console.print(view)
    assert len(console.export_text().splitlines()) <= height


def test_what_would_move_the_cursor_or_colour_the_screen_is_shown_as_it_is() -> None:
    assert printable("a\x1b[2Jb\x07\x9b1m\tc\nd\r") == "a\u241b[2Jb\u2407\ufffd1m\tc\nd\u240d"
    leader, follower = pty.openpty()
    with open(follower, "w") as terminal, io.StringIO() as file:
        assert shown_on(terminal, "\x1b") == "\u241b"
        assert shown_on(file, "\x1b") == "\x1b"
    os.close(leader)


def test_ctrl_c_stops_the_answer_and_not_the_program(
    tiny: Bundle, service: FakeService, tmp_path: Path
) -> None:
    gate = threading.Event()
    service.before = lambda *_: gate.wait(WAIT_S) and None  # the answer waits for its memories
    environment = {
        **os.environ, "EDGE_CLIENT_DEADLINE_S": "60", "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }  # fmt: skip
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = [PROGRAM, "chat", "--bundle", tiny.folder, "--service", service.address, "--max-tokens", "3"]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    screen = ""

    def until(text: str) -> None:
        nonlocal screen
        end = time.monotonic() + WAIT_S
        while text not in screen:
            assert time.monotonic() < end, screen
            if select.select([leader], [], [], 0.1)[0]:
                screen += os.read(leader, 65536).decode(errors="replace")
        screen = screen.partition(text)[2]

    until("you>")
    os.write(leader, b"hello\r")
    end = time.monotonic() + WAIT_S
    while not service.requests and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    until("(stopped)")
    until("you>")
    gate.set()
    asked = len(service.requests)
    os.write(leader, b"/retry\r")  # what got no word of an answer is asked again
    until("Memories read")
    until("you>")
    assert len(service.requests) > asked
    os.write(leader, b"/quit\r")
    assert process.wait(WAIT_S) == 0
    os.close(leader)
