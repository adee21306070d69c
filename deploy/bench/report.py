"""The tables of docs/benchmarks.md, written between two marks from the result files; the words around them stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.bench import result_files
from deploy.bench.machine import ROOT
from deploy.bench.scenario import ScenarioFailed
from deploy.bench.scenario_file import ORDER, find_scenario
from deploy.bench.tables import as_markdown, machine_line

PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
BEGIN = "<!-- results: begin, written by `make bench-report` -->"
END = "<!-- results: end -->"


def write(folder: Path, page: Path = PAGE, images: Path | None = None) -> list[str]:
    """Write the part between the marks anew; returns the names of the results that it shows.

    images: folder for the figures, None draws none. Raises ScenarioFailed if the page lacks its marks.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ScenarioFailed(
            f"{page} lacks the lines {BEGIN!r} and {END!r} between which results are written"
        )
    results = in_order(result_files.read_all(folder))
    sections = []
    for result in results:
        with of_this_version(result):
            sections.append(section(result, page, images))
    page.write_text(before + "\n\n".join([BEGIN, *sections, END]) + after, encoding="utf-8")
    return [str(result["name"]) for result in results]


@contextmanager
def of_this_version(result: Mapping[str, Any]) -> Iterator[None]:
    """Turn a key that the tables need and the result lacks into ScenarioFailed."""
    try:
        yield
    except KeyError as error:
        name = result["name"]
        raise ScenarioFailed(
            f"the result {name} lacks {error}: another version measured it; run `make bench-{name}` again"
        ) from error


def in_order(results: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Results as the report shows them: by scenario, then by name."""

    def place(result: Mapping[str, Any]) -> tuple[int, str]:
        known = result["scenario"] in ORDER
        return ORDER.index(result["scenario"]) if known else len(ORDER), result["name"]

    return sorted(results.values(), key=place)


def section(result: Mapping[str, Any], page: Path = PAGE, images: Path | None = None) -> str:
    """One result's part of the page; draws its figure into `images`."""
    scenario = find_scenario(result["scenario"])
    parts = [f"### `make bench-{result['name']}`", scenario.summary]
    parts += [as_markdown(sheet) for sheet in scenario.sheets(result)]
    if scenario.plot and images:
        path = images / f"bench-{result['name']}.svg"
        scenario.plot(result, path)
        parts.append(f"![{scenario.summary}]({path.relative_to(page.parent)})")
    quick = " Quick run: few rounds." if result["quick"] else ""
    return "\n\n".join([*parts, f"<sub>{machine_line(result)}.{quick}</sub>"])
