"""A report of results as one HTML file: tables, plots, machine and settings inside, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deploy.bench import result_files
from deploy.bench.report import in_order, of_this_version
from deploy.bench.scenario import ScenarioFailed, Sheet
from deploy.bench.scenario_file import find_scenario
from deploy.bench.tables import machine_line

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .5rem 0 } caption { text-align: left; font-weight: 600 }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left } .note, details { color: #555; font-size: 13px }
section { border-top: 2px solid #444; margin-top: 2rem } svg { max-width: 100%; height: auto }
"""


def write(folder: Path, path: Path) -> list[str]:
    """Write the report of all results below `folder`; returns their names. Raises ScenarioFailed if there are none."""
    results = in_order(result_files.read_all(folder))
    if not results:
        raise ScenarioFailed(
            f"no results in {folder}: measure something first, for example `make bench-codec`"
        )
    names = [str(result["name"]) for result in results]
    contents = "".join(f'<li><a href="#{name}">{name}</a></li>' for name in names)
    sections = []
    for result in results:
        with of_this_version(result):
            sections.append(_section(result))
    lines = "\n".join(sections)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Benchmarks</title>'
        f"<style>{_STYLE}</style></head><body><h1>Benchmarks</h1>\n"
        "<p>Ratios are medians over interleaved rounds; brackets are 95 % bootstrap intervals.</p>"
        f"<ul>{contents}</ul>\n{lines}\n</body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return names


def _section(result: Mapping[str, Any]) -> str:
    scenario = find_scenario(result["scenario"])
    quick = " Quick run: few rounds." if result["quick"] else ""
    machine = json.dumps({"machine": result["machine"], "settings": result["settings"]}, indent=2)
    parts = [
        f'<section id="{html.escape(result["name"])}"><h2>{html.escape(result["name"])}</h2>',
        f"<p>{html.escape(scenario.summary)}{quick}</p>",
        *(_table(sheet) for sheet in scenario.sheets(result)),
    ]
    if scenario.plot:
        parts.append(_drawn(scenario.plot, result))
    parts += [
        f'<p class="note">{html.escape(machine_line(result))}.</p>',
        f"<details><summary>machine and settings</summary><pre>{html.escape(machine)}</pre></details></section>",
    ]
    return "\n".join(parts)


def _table(sheet: Sheet) -> str:
    rows = [_row("td", row) for row in sheet.rows]
    note = f'<p class="note">{html.escape(sheet.note)}</p>' if sheet.note else ""
    head = f"<caption>{html.escape(sheet.title)}</caption><thead>{_row('th', sheet.columns)}</thead>"
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>{note}"


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"


def _drawn(plot: Any, result: Mapping[str, Any]) -> str:
    """The figure as SVG inside the page; its ids get the result's name, because all figures share the page."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        plot(result, path)
        drawn = path.read_text(encoding="utf-8")
    drawn = drawn[drawn.index("<svg") :]
    name = result["name"]
    for before, after in (
        (' id="', f' id="{name}-'),
        ("url(#", f"url(#{name}-"),
        ('href="#', f'href="#{name}-'),
    ):
        drawn = drawn.replace(before, after)
    return f"<figure>{drawn}</figure>"
