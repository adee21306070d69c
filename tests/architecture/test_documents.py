"""What the documents name exists: programs, options, settings, files, links, decisions."""

import functools
import importlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.text import Text

from edge_client import errors as device_errors
from edge_client.local.database import KEY_FILE
from edge_client.serve.access import ServeSettings
from edge_client.settings import EdgeSettings
from memory_service.client.connection import Connection
from memory_service.settings import Settings
from testing.programs import ROOT
from tests.memory_service.reasons import REASONS

PROGRAMS = {
    "memory-service": "memory_service.cli",
    "memory-model": "memory_model.cli",
    "edge-client": "edge_client.cli.main",
    "experiments": "experiments.__main__",
    "deploy.bench": "deploy.bench.__main__",
}
TRACKED = [
    name
    for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    if (ROOT / name).is_file()
]
PAGES = [name for name in TRACKED if name.endswith(".md")]
CURRENT = [name for name in PAGES if not name.startswith("docs/log/")]
"""Pages about the present code; those of the log keep the commands and files of their time."""
# A program, its words and options up to what ends a command; a continued line is one line.
CALL = re.compile(rf"(?<![\w/.-])({'|'.join(PROGRAMS)})((?: +[^\s|;&)`]+)*)")


def calls(text: str) -> Iterator[tuple[str, list[str]]]:
    blocks = re.findall(r"^```(?:sh|ini)?\n(.*?)^```$", text, re.M | re.S)
    code = "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))])
    for program, words in CALL.findall(code.replace("\\\n", " ")):
        yield program, words.partition(" #")[0].split()


@functools.cache
def commands(program: str) -> Any:
    """A program's group of commands."""
    return typer.main.get_command(importlib.import_module(PROGRAMS[program]).app)


def resolved(program: str, words: list[str]) -> tuple[Any, list[str]]:
    """The command or group that the words name, and the words after its name."""
    command = commands(program)
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"{program} has no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def anchors(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    return {
        re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)
    }


@pytest.mark.parametrize("page", CURRENT)
def test_every_program_command_and_option_on_a_page_exists(page: str) -> None:
    for program, words in calls((ROOT / page).read_text()):
        if not words or words[0].startswith("-") or not words[0].islower():
            continue
        command, rest = resolved(program, words)
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        used = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert used <= known | {"--help"}, f"{program} {' '.join(words)}"


def helped(command: Any) -> Iterator[str]:
    """Every text of the help of a command and of those below it."""
    texts = [command.help, command.epilog, *(getattr(parameter, "help", None) for parameter in command.params)]
    yield from filter(None, texts)
    for below in getattr(command, "commands", {}).values():
        yield from helped(below)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_shows_what_it_says(program: str) -> None:
    """Words in square brackets are markup and would be left out: `clickhouse[s]` was shown without its TLS."""
    for text in helped(commands(program)):
        assert Text.from_markup(text).plain == Text(text).plain


def test_every_setting_in_the_documents_exists() -> None:
    known = {"MEMORY_SERVICE_ADDRESS", "MEMORY_SERVICE_CONFIG", KEY_FILE}
    for settings in (Settings, Connection, EdgeSettings, ServeSettings):
        known |= {f"{settings.model_config['env_prefix']}{name.upper()}" for name in settings.model_fields}
    for page in PAGES:
        named = set(re.findall(r"(?:MEMORY_SERVICE|EDGE_CLIENT)_[A-Z_]*[A-Z]", (ROOT / page).read_text()))
        assert named <= known, page


DEVICE_REASONS = re.findall(r"\b[A-Z][A-Z_]{5,}\b", device_errors.__doc__ or "")


@pytest.mark.parametrize(("reasons", "page"), [(REASONS, "operator-guide"), (DEVICE_REASONS, "edge-guide")])
def test_every_reason_of_an_error_is_in_the_table_of_troubleshooting(reasons: list[str], page: str) -> None:
    table = (ROOT / "docs" / f"{page}.md").read_text().partition("## Troubleshooting")[2]
    assert set(reasons) <= set(re.findall(r"`([A-Z_]+)`", table))


def test_every_source_file_in_the_documents_exists() -> None:
    for page in CURRENT:
        for named in re.findall(r"`([\w./-]+\.(?:py|mjs|proto|c))`", (ROOT / page).read_text()):
            assert any(f"/{name}".endswith(f"/{named}") for name in TRACKED), f"{page} names {named}"


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    for page in PAGES:
        path = ROOT / page
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
        for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
            if re.match(r"[a-z]+:", link):
                continue
            target = (path.parent / link) if link else path
            assert target.exists(), f"{page} links to {link}"
            assert not anchor or anchor in anchors(target), f"{page} links to {link}#{anchor}"


def test_every_decision_that_code_names_is_on_the_page() -> None:
    decided = set(re.findall(r"^## (\d{4}) ", (ROOT / "docs/decisions/README.md").read_text(), re.M))
    code = subprocess.run(
        ["git", "grep", "-hioE", r"decisions? 0[0-9]{3}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {line[-4:] for line in code.split("\n") if line} <= decided
