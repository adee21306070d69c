"""docs/commands.md is what the programs' own help says."""

from __future__ import annotations

from docs.commands import PAGE, commands_page


def test_the_page_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == commands_page(), "run `make docs`"
