"""Sheets as tables: on the console with rich, in the report as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.bench.scenario import Scenario, Sheet


def show(console: Console, scenario: Scenario[Any], result: Mapping[str, Any]) -> None:
    """Print a scenario's sheets and the machine they belong to."""
    for sheet in scenario.sheets(result):
        console.print(as_rich(sheet))
        if sheet.note:
            console.print(Text(sheet.note, style="dim"))
    console.print(Text(machine_line(result), style="dim"))


def as_rich(sheet: Sheet) -> Table:
    """A table for the terminal."""
    table = Table(title=sheet.title, title_justify="left", show_lines=False)
    for number, column in enumerate(sheet.columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in sheet.rows:
        table.add_row(*map(Text, row))
    return table


def as_markdown(sheet: Sheet) -> str:
    """A table for a page, its title before it and its note behind it."""
    lines = [f"**{sheet.title}**", "", _line(sheet.columns), _line(["---"] * len(sheet.columns))]
    lines += [_line(row) for row in sheet.rows]
    if sheet.note:
        lines += ["", sheet.note]
    return "\n".join(lines)


def machine_line(result: Mapping[str, Any]) -> str:
    """The machine, the runtime and the day of a result in one line."""
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    load = machine["load_average"][0]
    return (
        f"{machine['date'][:10]}, commit {machine['commit'] or 'unknown'}, {machine['cpu']}, "
        f"{machine['cores_usable']} of {machine['cores']} cores usable, load {load:.1f} at the start, "
        f"copies {machine['copy_gb_per_s']:.3g} GB/s, {result['settings']['threads']} thread(s), "
        f"{_power(machine)}"
        f"Python {machine['python']}, {versions}"
    )


def _power(machine: Mapping[str, Any]) -> str:
    """Of a Jetson: its power mode and whether its clocks were locked, without which no figure of it says anything."""
    if "power_mode" not in machine:
        return ""
    locked = {True: "locked", False: "not locked", None: "unknown"}[machine.get("clocks_locked")]
    return f"power mode {machine['power_mode'] or 'unknown'}, clocks {locked}, "


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
