"""Tables on the console and in docs/benchmarks.md, where the part between two marks is written from results.

A scenario and a model without a result keep the section that the page has; each section names the day and the commit.
First comes one table of all models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from deploy.bench import outcome, summary
from deploy.bench.scenario import SCENARIOS, ScenarioFailed, Sheet, find_scenario
from testing.programs import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- results: begin, written by `make bench-report` -->"
END = "<!-- results: end -->"
_HEAD = "### `make bench-"


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print what the page will say of a result."""
    console.print(Markdown(section(result).replace("<sub>", "").replace("</sub>", "")))


def write(folder: Path, page: Path = PAGE) -> list[str]:
    """Write the part between the marks anew; returns the names of what was written. Raises ScenarioFailed."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    middle, end, after = rest.partition(END)
    if not (begin and end):
        raise ScenarioFailed(f"{page} lacks the lines {BEGIN!r} and {END!r} between which results are written")
    overview, *parts = middle.split(_HEAD)
    kept = {part.partition("`")[0]: _HEAD + part.strip() for part in parts}
    measured = {name: outcome.of_every_model(find_scenario(name), folder) for name in SCENARIOS}
    new = {_title(result): section(result) for results in measured.values() for result in results}
    sections = kept | new
    ordered = [sections[title] for title in sorted(sections, key=_order) if title.split()[0] in SCENARIOS]
    table = summary.as_table(measured, overview)
    page.write_text(before + "\n\n".join([BEGIN, *table, *ordered, END]) + after, encoding="utf-8")
    return list(new)


def section(result: Mapping[str, Any]) -> str:
    """One result's part of the page; raises ScenarioFailed for a result that lacks what the tables need."""
    name = result["scenario"]
    scenario = find_scenario(name)
    try:
        tables = [as_markdown(sheet) for sheet in scenario.sheets(result)]
        machine = f"<sub>{machine_line(result)}.{' Quick run: few rounds.' if result['quick'] else ''}</sub>"
    except KeyError as error:
        raise ScenarioFailed(f"the result of {name} lacks {error}: run `make bench-{name}` again") from error
    return "\n\n".join([f"{_HEAD}{_title(result)}`", scenario.summary, *tables, machine])


def _title(result: Mapping[str, Any]) -> str:
    """What a section's heading names behind `make bench-`."""
    model = outcome.model_of(find_scenario(result["scenario"]), result)
    return f"{result['scenario']} MODEL={model}" if model else str(result["scenario"])


def _order(title: str) -> tuple[int, str]:
    name, *model = title.split()
    return SCENARIOS.index(name) if name in SCENARIOS else len(SCENARIOS), "".join(model)


def as_markdown(sheet: Sheet) -> str:
    """A table for a page, its title before it and its note behind it."""
    lines = [f"**{sheet.title}**", "", _line(sheet.columns), _line(["---"] * len(sheet.columns))]
    lines += [_line(row) for row in sheet.rows]
    return "\n".join([*lines, "", sheet.note] if sheet.note else lines)


def machine_line(result: Mapping[str, Any]) -> str:
    """Day, commit and machine of a result in one line; of a Jetson the power mode, too."""
    machine = result["machine"]
    power = f", power mode {machine['power_mode'] or 'unknown'}" if "power_mode" in machine else ""
    return (
        f"{machine['date'][:10]}, commit {machine['commit']}, {machine['cpu']}, {machine['cores']} cores, "
        f"{result['settings']['threads']} thread(s), load {machine['load_average'][0]:.1f} at the start{power}"
    )


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
