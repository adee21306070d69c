"""What people type and see: files with spaces, disks that cannot be written, narrow terminals, addresses, Ctrl-C."""

import errno
import io
import logging
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from edge_client.cli.options import memories_table
from edge_client.model import EdgeModel
from edge_client.recall.outcome import MemoryRead, Recall
from edge_client.stream import Recalled
from memory3 import __version__
from memory3.files.bundle import Bundle
from memory3.printable import Wrapped
from testing.processes import AppProcess
from tests.edge_client.cli.conftest import run

LAUNCH = "import sys; from memory3.launch import {0}; sys.argv[0] = '{0}'; print('begun', flush=True); {0}()"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wrapped(text: str, width: int, size: int = 3) -> list[str]:
    stream = Terminal()
    with Wrapped(stream, width) as shown:
        for start in range(0, len(text), size):
            shown.write(text[start : start + size])
    return stream.getvalue().split("\n")[:-1]


def test_words_are_not_broken_at_the_edge() -> None:
    text = "every creature of the sea\n\n  1. Whale, which is long-lived"
    assert wrapped(text, 12) == ["every", "creature of", "the sea", "", "  1. Whale,", "which is", "long-lived"]
    assert wrapped("日本語のテキスト", 8) == ["日本語の", "テキスト"]
    assert wrapped("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


@given(st.text(alphabet="ab \n", max_size=60), st.integers(1, 9))
def test_no_word_is_lost_and_no_line_is_too_long(text: str, size: int) -> None:
    lines = wrapped(text, 10, size)
    assert "\n".join(lines).split() == text.split() or any(len(word) >= 10 for word in text.split())
    assert all(len(line.rstrip()) <= 10 for line in lines)


def test_a_program_that_reads_the_answer_gets_it_as_it_is() -> None:
    stream = io.StringIO()
    with Wrapped(stream, 4) as shown:
        shown.write("several words \x1b")
    assert stream.getvalue() == "several words \x1b\n"


def test_a_disk_that_cannot_be_written_ends_the_command_and_not_the_chat(
    places: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    result = run("chat", *places, "--max-tokens", 2, stdin=f"hello\n/save {tmp_path / 'talk'}\n/history\n")
    assert result.exit_code == 0, result.output
    assert "NOT_WRITABLE" in result.stderr
    assert "user> hello" in result.stderr


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/port"), "/a/port: Permission denied\n"),
    ],
)
@pytest.mark.parametrize("command", [("ask", "x"), ("chat",), ("serve", "--port", 0), ("mcp",)])
def test_what_the_system_refuses_is_one_line(
    places: list[object], monkeypatch: pytest.MonkeyPatch, refused: OSError, said: str, command: tuple[object, ...]
) -> None:
    monkeypatch.setattr(EdgeModel, "open", Mock(side_effect=refused))
    result = run(*command, *places)
    assert (result.exit_code, result.stderr) == (1, said)


@pytest.mark.parametrize(
    ("command", "variable"), [(("remembered",), "XDG_DATA_HOME"), (("serve", "--lan", "--port", 0), "XDG_STATE_HOME")]
)
def test_a_user_without_a_home_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch, command: tuple[object, ...], variable: str
) -> None:
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))  # as of a container's user that has only a number
    for name in ("HOME", "EDGE_CLIENT_LOCAL", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    result = run(*command)
    assert result.exit_code == 1
    assert "this user has no home folder" in result.stderr
    assert f"set HOME, or {variable}" in result.stderr


def test_a_chat_ends_with_the_program_that_reads_its_answers(
    places: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wrapped, "write", gone := Mock(side_effect=BrokenPipeError(errno.EPIPE, "Broken pipe")))
    assert run("chat", *places, "--max-tokens", 2, stdin="hello\nhello\n").exit_code == 1
    assert gone.call_count == 1


def test_a_file_is_named_as_in_a_shell(places: list[object], tmp_path: Path) -> None:
    file = tmp_path / "my notes.txt"
    file.write_text("The key lies below the mat.")
    backslashes = str(file).replace(" ", "\\ ")
    lines = [f'/add "{file}"', f"/add {backslashes}", f"/add {file}", "/add 'alone", "/documents", f"/forget '{file}'"]
    shown = run("chat", *places, stdin="\n".join(lines)).stderr
    assert shown.count("stored: ") == 1
    assert shown.count("unchanged: ") == 2
    assert "'alone does not exist" in shown
    assert f"forgotten: {file}" in shown


@pytest.mark.parametrize("columns", [40, 80])
def test_a_narrow_terminal_shows_lines_and_no_squeezed_table(
    places: list[object], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_client.cli.options.err.width", columns)
    shown = run("ask", "What is the code of Lima?", *places, "--max-tokens", 3, "--details").stderr
    assert ("decompress ms" in shown) == (columns == 80)
    assert "Memories read" in shown
    assert all(len(line) <= columns for line in shown.splitlines() if "://" not in line)


@pytest.mark.parametrize("texts", [True, False])
def test_a_table_that_leaves_no_room_for_the_texts_becomes_lines(monkeypatch: pytest.MonkeyPatch, texts: bool) -> None:
    def shown(title: str) -> str:
        read = (MemoryRead(1, "k", title, 0, 0.5, "A text of several words that is read.", knowledge_base="mine"),)
        target = Console(width=80, record=True, file=io.StringIO())
        target.print(memories_table([Recalled(0, False, Recall("q", read=read))], texts=texts))
        return target.export_text()

    monkeypatch.setattr("edge_client.cli.options.err.width", 80)
    assert "document" in shown("Lease"), "a table"
    long = shown("Lease of the flat in Mill Lane 8, which was signed in 1999 (lease.md)")
    assert "document" not in long
    assert ("A text of several words that is read." in long) == texts


@pytest.mark.parametrize("program", ["edge_client", "memory_service", "memory_model"])
def test_every_command_has_a_version_and_ends_silently_while_it_loads(program: str) -> None:
    command = [sys.executable, "-c", LAUNCH.format(program)]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"begun\n{program.replace('_', '-')} {__version__}\n"
    for wait_s in (0.0, 0.1, 0.3):
        with subprocess.Popen([*command, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(wait_s)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert b"Traceback" not in said


def test_the_help_has_the_boxes_of_the_other_programs_and_every_default() -> None:
    shown = run("serve", "--help").output
    assert "─ Options ─" in shown
    for default in ("127.0.0.1", "8080", "build/bundle", "the user's", "the packaged one"):
        assert f"default: {default}" in " ".join(shown.replace("│", " ").split())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_the_address_that_is_printed_answers(tiny: Bundle, nobody: str, tmp_path: Path, host: str) -> None:
    with AppProcess.start(tmp_path, tiny.folder, nobody, "--host", host, "--offline") as server:
        shown = server.log.read_text().partition("chat at ")[2].split("#")[0].split(",")[0].rstrip("/")
        assert ("[::1]" in shown) == (host == "::1")
        with urllib.request.urlopen(f"{shown}/health", timeout=20) as answer:
            assert answer.status == 200


def test_the_file_of_a_port_is_there_whole_or_not_at_all(
    tiny: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(path: Path, text: str, **_: object) -> int:
        seen.append(port_file.exists())
        size = path.write_bytes(text.encode())
        seen.append(port_file.exists())
        return size

    port_file, seen = tmp_path / "port", list[bool]()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: monkeypatch.undo())
    monkeypatch.setattr("pathlib.Path.write_text", written)
    done = run("serve", "--bundle", tiny.folder, "--offline", "--port", 0, "--port-file", port_file)
    assert done.exit_code == 0, done.output
    assert (port_file.read_text().isdecimal(), any(seen)) == (True, False)


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_a_terminal_shows_what_is_loading(
    places: list[object], tiny: Bundle, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("edge_client.cli.options.err", Console(stderr=True, force_terminal=True, width=200))
    monkeypatch.setattr("edge_client.decoder.threads.physical_cores", lambda: 2)
    monkeypatch.setattr("edge_client.decoder.threads.step_ms", lambda graph: 1.0)
    monkeypatch.setattr("edge_client.decoder.threads.others_since", lambda: lambda: 0.0)  # however busy this machine is
    steps: list[str] = []
    monkeypatch.setattr("rich.status.Status.update", lambda status, text, **_: steps.append(text))
    shutil.rmtree(tiny.folder / "cache", ignore_errors=True)
    shown = run(command, *(["What is the code of Lima?"] if command == "ask" else []), *places, "--max-tokens", 3)
    assert f"loading {tiny.folder}" in shown.stderr
    assert steps == [
        f"checking {tiny.folder}",
        "loading the decoder",
        "measuring with how many threads it is fastest",
        "loading the embedder",
    ]
    assert "loading" not in shown.stdout
    assert not logging.getLogger("edge_client.loading").handlers


def test_who_reads_the_output_of_a_command_is_not_shown_what_is_loading(places: list[object]) -> None:
    assert "loading" not in run("ask", "What is the code of Lima?", *places, "--max-tokens", 3).stderr
