"""The reference of all commands and settings, made from the programs' own help when the site is built: `make docs`."""

from __future__ import annotations

import importlib
import re
from typing import Any

import typer.main
from typer.cli import get_docs_for_click

PROGRAMS = {
    "memory-model": "memory_model.cli",
    "memory-service": "memory_service.cli",
    "edge-client": "edge_client.cli.main",
}

_SUPERFLUOUS = (
    re.compile(r"^\* `--(help|install-completion|show-completion)`: .*\n", re.MULTILINE),
    re.compile(r"^\*\*Usage\*\*:\n\n```console\n.*\n```\n\n", re.MULTILINE),
    re.compile(r"^\*\*Commands\*\*:\n\n(\* .*\n)+", re.MULTILINE),
    re.compile(r"^\*\*Options\*\*:\n\n(?!\*)", re.MULTILINE),
)
"""What every command has, and lists of commands whose sections follow."""


def commands_page() -> str:
    """The whole page."""
    parts = [
        "# Commands\n\nEvery command with its options, as `--help` prints them, and the settings of the service.\n",
        *(_program(name, module) for name, module in PROGRAMS.items()),
        _service_settings(),
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def _program(name: str, module: str) -> str:
    command = typer.main.get_command(importlib.import_module(module).app)
    # The context is made by the command and read by the documentation: both are the framework's own affair.
    context: Any = command.make_context(name, ["--help"], resilient_parsing=True)
    text = str(get_docs_for_click(obj=command, ctx=context, name=name))
    for superfluous in _SUPERFLUOUS:
        text = superfluous.sub("", text)
    return re.sub(r"^#", "##", text, flags=re.MULTILINE)


def _service_settings() -> str:
    from memory_service.settings import Settings

    rows = ["## Settings of the service", "", "| variable | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        # A default that is computed depends on the machine: its description says what it is.
        fixed = field.default is not None and field.default_factory is None
        default = f"`{field.default}`" if fixed else ""
        rows.append(f"| `MEMORY_SERVICE_{name.upper()}` | {default} | {field.description or ''} |")
    return "\n".join(rows)
