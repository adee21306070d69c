"""The programs of docs/guides run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from memory3.files.bundle import Bundle
from testing.processes import AppProcess
from testing.programs import ROOT
from tests.edge_client.fake_service import FakeService

GUIDES = ROOT / "docs" / "guides"


def run(name: str, *arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GUIDES / name), *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def test_the_chat_app_is_short_and_answers_and_says_what_it_reads(tiny: Bundle, service: FakeService) -> None:
    lines = "hello\n" + "too long " * 500 + "\nand Rome?\n"
    done = run("chat_app.py", tiny.folder, service.address, stdin=lines)
    assert all(said in done.stderr for said in ("read Title", "CONTEXT_FULL")), done.stderr
    assert done.stderr.count("tokens/s") == 2
    assert len((GUIDES / "chat_app.py").read_text().strip().splitlines()) <= 21


def test_two_questions_are_answered_at_once(tiny: Bundle, service: FakeService) -> None:
    done = run("two_at_once.py", tiny.folder, service.address)
    benin, togo = [line for line in done.stdout.splitlines() if line.startswith("What is the")]
    assert benin.startswith("What is the capital of Benin?")
    assert togo.startswith("What is the highest point of Togo?")


def test_the_openai_client_reads_text_and_what_it_is_from(tiny: Bundle, service: FakeService, tmp_path: Path) -> None:
    with AppProcess.start(tmp_path, tiny.folder, service.address) as app:
        done = run("through_openai.py", f"http://127.0.0.1:{app.port}/v1")
    assert "[chunk 0: fetched]" in done.stderr


def test_the_tutorial_runs_from_its_first_block_to_its_last(
    tiny: Bundle,
    service: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EDGE_CLIENT_BUNDLE", str(tiny.folder))
    monkeypatch.setenv("EDGE_CLIENT_SERVICE", service.address)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (GUIDES / "tutorial.md").read_text(), re.M | re.S)
    exec(compile("\n".join(blocks), "tutorial.md", "exec"), {})
    said = capsys.readouterr().out
    for words in ("Title", "tokens/s", "chunk 0: ", "ended by length", "is the last word;", "CONTEXT_FULL"):
        assert words in said
