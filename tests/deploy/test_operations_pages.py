"""Pages of operations: what they tell to type exists, and says how it was tried; tests/slow runs it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
import typer.main

from tests.deploy.operations_pages import FOLDER, PAGES, ROOT, blocks

PROGRAMS = {
    "memory-service": "memory_service.cli",
    "memory-model": "memory_model.cli",
    "edge-client": "edge_client.cli.main",
}
WANTED = ("README", "install", "upgrade", "scale", "backup", "keys", "runbooks", "capacity", "trust")
# A program, its words and options up to what ends a command; a continued line is one line.
CALL = re.compile(rf"(?<![\w/.-])({'|'.join(PROGRAMS)})((?: +[^\s|;&)`]+)*)")


def calls(text: str) -> Iterator[tuple[str, list[str]]]:
    code = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) + re.findall(r"`([^`\n]+)`", text))
    for program, words in CALL.findall(code.replace("\\\n", " ")):
        yield program, words.split()


def resolved(program: str, words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and the words after its name."""
    command: Any = typer.main.get_command(importlib.import_module(PROGRAMS[program]).app)
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        assert words, f"{program} is a group of commands"
        assert words[0] in command.commands, f"{program} has no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def test_every_subject_of_operations_has_its_page() -> None:
    assert {f"{name}.md" for name in WANTED} == set(PAGES)
    index = (FOLDER / "README.md").read_text()
    assert all(f"]({page})" in index for page in PAGES if page != "README.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_program_command_and_option_on_a_page_exists(page: str) -> None:
    for program, words in calls((FOLDER / page).read_text()):
        if not words or words[0].startswith("-") or not words[0].islower():
            continue
        command, rest = resolved(program, words)
        known = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        used = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert used <= known | {"--help"}, f"{program} {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_how_it_was_tried(page: str) -> None:
    for block in blocks(page):
        assert block.language in ("sh", "ini"), f"{page}: name the language of\n{block.text}"
        if block.run_by is not None:
            assert (ROOT / block.run_by).is_file(), f"{page}: {block.run_by}"
        assert not (block.runs and "kubectl" in block.text and "--dry-run=client" not in block.text), (
            f"{page}: there is no cluster to run\n{block.text}"
        )
