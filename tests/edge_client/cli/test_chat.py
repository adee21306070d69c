"""The conversation in a terminal: typing, the commands, and Ctrl-C in a real one."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from edge_client.cli.chat import typed_at_terminal, typed_lines
from edge_client.errors import ModelClosed
from edge_client.session import ChatSession
from edge_client.stream import AnswerStream
from memory3.files.bundle import Bundle
from memory3.printable import printable
from tests.edge_client.cli.conftest import PROGRAM, run
from tests.edge_client.fake_service import FakeService

WAIT_S = 60.0


def typed(keys: str, history: Path | None = None, messages: int = 1) -> list[str | None]:
    with create_pipe_input() as source:
        source.send_text(keys)
        read = typed_at_terminal(history, source=source, target=DummyOutput())
        return [read() for _ in range(messages)]


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
    assert typed("third\r", Path("/proc/history")) == ["third"], "nothing can be kept there"


def test_a_line_from_a_pipe_goes_on_after_a_backslash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one \\\ntwo\n\nthree"))
    assert [typed_lines() for _ in range(4)] == ["one \ntwo", "", "three", None]


def test_what_would_move_the_cursor_or_colour_the_screen_is_shown_as_it_is(places: list[object]) -> None:
    assert printable("a\x1b[2Jb\x07\x9b1m\tc\nd\r") == "a\u241b[2Jb\u2407\ufffd1m\tc\nd\u240d"
    lines = "a\x1b[2Jb\n/history\n/load c\x1b[2Jd\n/e\x1b[2Jf\n"
    result = run("chat", *places, "--max-tokens", 2, stdin=lines)
    for said in ("user> a\u241b[2Jb", "c\u241b[2Jd", "no command /e\u241b[2Jf"):
        assert said in result.stderr
    assert "\x1b[2J" not in result.stderr


def test_who_has_nothing_to_read_is_told_how_to_remember_a_file(tiny: Bundle, tmp_path: Path) -> None:
    (note := tmp_path / "note.md").write_text("The key of room 3 is under the mat.")
    lines = ["hello", "/documents", f"/add {note}", "/documents", note.read_text()]
    result = run("chat", "--bundle", tiny.folder, "--offline", "--max-tokens", 2, stdin="\n".join(lines))
    before, _, after = result.stderr.partition("stored: ")
    assert before.count("/add FILE remembers") == 2
    assert "/add FILE" not in after


def test_chat_keeps_the_conversation_and_knows_its_commands(places: list[object], tmp_path: Path) -> None:
    note = tmp_path / "note.md"
    note.write_text("The key of room 3 is under the mat.")
    lines = [
        "hello",
        "/memories",
        "/citations",
        "/stats",
        "/what",
        "/help",
        "",
        "x" * 3000,
        "and Rome?",
        "/edit and Paris?",
        "/history",
        "/history HELL",
        f"/add {note}",
        "/add",
        "/reset",
        "/edit hello",
        "/continue",
        note.read_text(),
        "/continue",
        "/memories",
        "/documents",
        f"/forget {note}",
        "/forget it",
        "/system Be brief.",
        "/history BRIEF",
        "/quit",
        "never",
    ]
    result = run("chat", *places, "--max-tokens", 4, stdin="\n".join(lines))
    assert result.exit_code == 0, result.output
    for said in (
        "Memories read",
        "citations on",
        "reused",
        "there is no command /what; there are: /kb, /memory, ",
        "/save FILE",
        "CONTEXT_FULL",
        "user> and Paris?",
        "stored: ",
        "/add needs a file: /add FILE",
        "a new conversation",
        "this conversation has no question yet",
        "there is no answer to continue",
        "mine: note",
        f"mine: {note}, ",
        f"forgotten: {note}",
        "there is no it",
        "system> Be brief.",
    ):
        assert said in result.stderr
    assert "user> and Rome?" not in result.stderr
    assert "could not be remembered" not in result.stderr, "a question that is too long makes no turn leave"
    assert result.stderr.count("user> hello") == 2, "of the whole and of what was searched"


def test_chat_switches_and_compares_memory_and_lists_and_chooses_bases(
    places: list[object], service: FakeService
) -> None:
    lines = [
        "/kb",
        "/memory off",
        "hello",
        "/memory compare",
        "hello",
        "/memory maybe",
        "/kb towns",
        "hi",
        "/kb nosuch",
    ]
    said = run("chat", *places, "--max-tokens", 3, stdin="\n".join(lines)).stderr
    for each in (
        "* default",
        "  towns",
        "without memory",
        "with memory",
        "there is no knowledge base 'nosuch'",
        "/memory takes overlap, exact, off or compare, not 'maybe'",
    ):
        assert each in said
    assert {r.knowledge_base for r in service.requests} == {"default", "towns"}


def test_a_memory_of_this_device_is_corrected_in_a_chat(places: list[object], tmp_path: Path) -> None:
    (tmp_path / "code.txt").write_text("Code of Lima: 74")
    typed = [f"/add {tmp_path}/code.txt", "/correct code 0 Code of Lima: 75", "/correct code 9 x", "/correct code"]
    said = run("chat", *places, stdin="\n".join(typed)).stderr
    assert "corrected: " in said
    assert "code.txt has no memory 9" in said
    assert "/correct needs a document, the number of its memory and the new text" in said
    assert "Code of Lima: 75" in run("correct", "code", "--bundle", places[1]).stdout


def test_a_question_whose_retry_fails_is_not_lost(places: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    send, asked = ChatSession.send, list[str]()

    def failing_once(self: ChatSession, text: str, **options: Any) -> AnswerStream:
        asked.append(text)
        if len(asked) == 2:
            raise ModelClosed("not now")
        return send(self, text, **options)

    monkeypatch.setattr(ChatSession, "send", failing_once)
    result = run("chat", *places, "--max-tokens", 2, stdin="hello\n/retry\n/retry\n/history\n")
    assert result.exit_code == 0, result.output
    assert asked == ["hello"] * 3
    assert "MODEL_CLOSED: not now" in result.stderr
    assert result.stderr.count("user> hello") == 1


def test_chat_saves_and_loads(places: list[object], tmp_path: Path) -> None:
    file = tmp_path / "chat"
    run("chat", *places, "--max-tokens", 4, stdin=f"hello\n/save {file}\n")
    result = run(
        "chat", *places, "--max-tokens", 4, stdin=f"/load {file}\n/history\n/load {tmp_path / 'none'}\n/save\n"
    )
    for said in ("2 messages", "user> hello", "MISSING_FILE", "/save needs a file: /save FILE"):
        assert said in result.stderr


def test_ctrl_c_stops_the_answer_and_not_the_program(tiny: Bundle, service: FakeService, tmp_path: Path) -> None:
    gate = threading.Event()
    service.before = lambda *_: gate.wait(WAIT_S) and None  # the answer waits for its memories
    environment = {
        **os.environ,
        "EDGE_CLIENT_DEADLINE_S": "60",
        "XDG_STATE_HOME": str(tmp_path),
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }
    leader, follower = pty.openpty()
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


def test_questions_in_a_chat_are_about_a_whole_document_until_it_is_left(places: list[object], tmp_path: Path) -> None:
    (tmp_path / "code.txt").write_text("Code of Lima: 74")
    typed = [
        f"/add {tmp_path}/code.txt",
        "/document nothing",
        "/document code.txt",
        "What is this about?",
        "/memories",
        "/retry",
        "/document",
        "/history",
        "/continue",
    ]
    said = run("chat", *places, "--max-tokens", 3, stdin="\n".join(typed)).stderr
    assert "nothing" in said.partition("about code.txt as a whole")[0], "a name that no document has is refused"
    assert "Code of Lima: 74" in said.partition("Memories read")[2], "all of it is read, whatever the question"
    assert "about everything" in said
    assert said.count("user> What is this about?") == 1
    assert said.count("assistant> ") == 1
