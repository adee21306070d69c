"""Tables on the console and in docs/benchmarks.md, where the part between two marks is written from results.

A scenario without a newer result keeps the section that the page has; each section says how old its figures are.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from deploy.bench import results
from deploy.bench.machine import ROOT, commits_since
from deploy.bench.scenario import ScenarioFailed, Sheet, find_scenario, scenario_names

PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- results: begin, written by `make bench-report` -->"
END = "<!-- results: end -->"
_HEAD = "### `make bench-"
_MACHINE = re.compile(r"<sub>(\d{4}-\d\d-\d\d), commit ([0-9a-f]+)")
_AGE = re.compile(r"^_Measured on .*_\n\n", re.MULTILINE)


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print what the page will say of a result."""
    console.print(Markdown(section(result).replace("<sub>", "").replace("</sub>", "")))


def write(folder: Path, page: Path = PAGE) -> list[str]:
    """Write the part between the marks anew; returns a line on every scenario of the page. Raises ScenarioFailed."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    middle, end, after = rest.partition(END)
    if not (begin and end):
        raise ScenarioFailed(
            f"{page} lacks the lines {BEGIN!r} and {END!r} between which results are written"
        )
    there = {part.partition("`")[0]: _HEAD + part.strip() for part in middle.split(_HEAD)[1:]}
    sections, lines = [], []
    for name in scenario_names():
        kept, path, found, problem = there.get(name, ""), folder / f"{name}.json", "", ""
        try:
            found = section(results.read(path)) if path.is_file() else ""
        except ScenarioFailed as error:
            problem = f" ({error})"
        chosen = found if found and _day(found) >= _day(kept) else kept
        if chosen:
            sections.append(_dated(chosen))
        if chosen or problem:
            news = "written" if found and chosen is found else "kept"
            lines.append(f"{name}: {news}, {_age(chosen)}{problem}")
    page.write_text(before + "\n\n".join([BEGIN, *sections, END]) + after, encoding="utf-8")
    return lines


def section(result: Mapping[str, Any]) -> str:
    """One result's part of the page; raises ScenarioFailed for a result that lacks what the tables need."""
    name = result["scenario"]
    scenario = find_scenario(name)
    try:
        tables = [as_markdown(sheet) for sheet in scenario.sheets(result)]
        machine = f"<sub>{machine_line(result)}.{' Quick run: few rounds.' if result['quick'] else ''}</sub>"
    except KeyError as error:
        raise ScenarioFailed(f"the result of {name} lacks {error}: run `make bench-{name}` again") from error
    return "\n\n".join([f"{_HEAD}{name}`", scenario.summary, *tables, machine])


def as_markdown(sheet: Sheet) -> str:
    """A table for a page, its title before it and its note behind it."""
    lines = [f"**{sheet.title}**", "", _line(sheet.columns), _line(["---"] * len(sheet.columns))]
    lines += [_line(row) for row in sheet.rows]
    return "\n".join([*lines, "", sheet.note] if sheet.note else lines)


def machine_line(result: Mapping[str, Any]) -> str:
    """The machine, the runtime and the day of a result in one line; of a Jetson the power mode, too."""
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    power = ""
    if "power_mode" in machine:
        power = f"power mode {machine['power_mode'] or 'unknown'}, "
    return (
        f"{machine['date'][:10]}, commit {machine['commit'] or 'unknown'}, {machine['cpu']}, "
        f"{machine['cores_usable']} of {machine['cores']} cores usable, load {machine['load_average'][0]:.1f} at the"
        f" start, copies {machine['copy_gb_per_s']:.3g} GB/s, {result['settings']['threads']} thread(s), {power}"
        f"Python {machine['python']}, {versions}"
    )


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _day(text: str) -> str:
    found = _MACHINE.search(text)
    return found[1] if found else ""


def _age(text: str) -> str:
    found = _MACHINE.search(text)
    if not found:
        return "of unknown age"
    newer, today = commits_since(found[2]), datetime.date.today().isoformat()
    age = (
        "at a commit that this history lacks"
        if newer is None
        else f"{newer} commits before this page ({today})"
    )
    return f"measured on {found[1]}, {age}"


def _dated(text: str) -> str:
    """The section with the line that says its age behind its heading."""
    head, _, body = _AGE.sub("", text).partition("\n\n")
    age = _age(text)
    return f"{head}\n\n_{age[0].upper()}{age[1:]}._\n\n{body}"
