"""The latency harness: measure a scenario, compare two results, write the reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deploy.bench import compare as comparing
from deploy.bench import html_report, report, result_files
from deploy.bench import tables as shown
from deploy.bench.scenario import ScenarioFailed
from deploy.bench.scenario_file import find_scenario, overrides_of, read_plan, scenario_names
from memory_model.errors import Memory3Error

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)

Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Page = Annotated[Path | None, typer.Option(help="Page whose marked part is written, with figures.")]
Html = Annotated[Path | None, typer.Option(help="A page of its own with everything inside.")]
Quick = Annotated[bool, typer.Option("--quick", help="The file's quick settings: to try it out.")]


@contextmanager
def _errors_for_people() -> Iterator[None]:
    try:
        yield
    except (ScenarioFailed, Memory3Error, OSError) as error:
        _tell(error)
        raise typer.Exit(2) from error


def _tell(error: Exception) -> None:
    Console(stderr=True, highlight=False).print(f"[bold red]failed:[/] {error}", soft_wrap=True)


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(help="A scenario's name, or a YAML file.")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A setting instead of the file's: name=value (YAML).")
    ] = None,
    quick: Quick = False,
    out: Out = result_files.RESULTS,
) -> None:
    """Measure a scenario, write its result, show its tables."""
    with _errors_for_people():
        plan = read_plan(scenario, overrides_of(assignments or []), quick=quick)
        result = result_files.measure(plan, out)
    shown.show(console, plan.scenario, result)
    console.print(f"written to {out / plan.name}.json")


@app.command("all")
def run_all(
    quick: Quick = False,
    leave_out: Annotated[list[str] | None, typer.Option(help="A scenario not to measure.")] = None,
    out: Out = result_files.RESULTS,
    page: Page = None,
    html: Html = None,
) -> None:
    """Measure every scenario, one after the other, and write the reports; exits with 2 at the end if any failed."""
    failed = []
    for name in scenario_names():
        if name in (leave_out or ()):
            continue
        console.rule(name)
        try:
            plan = read_plan(name, quick=quick)
            shown.show(console, plan.scenario, result_files.measure(plan, out))
        except (ScenarioFailed, Memory3Error, OSError) as error:
            _tell(error)
            failed.append(name)
    write_report(out, page, html)
    if failed:
        console.print(f"without a result: {', '.join(failed)}")
        raise typer.Exit(2)


@app.command("list")
def list_scenarios() -> None:
    """The scenarios with what they measure."""
    for name in scenario_names():
        console.print(f"{name:10} {find_scenario(name).summary}", soft_wrap=True)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A result file.")],
    after: Annotated[Path, typer.Argument(help="A later one of the same scenario.")],
    tolerance: Annotated[
        float, typer.Option(min=0, help="Smaller relative changes are none.")
    ] = comparing.TOLERANCE,
) -> None:
    """Tell what became better or worse; exits with 1 if anything became worse."""
    with _errors_for_people():
        one, other = result_files.read(before), result_files.read(after)
        verdicts = comparing.compare(one, other, tolerance)
    for difference in comparing.differences(one, other):
        console.print(f"[yellow]measured differently[/] – {difference}")
    console.print(shown.as_rich(comparing.sheet(verdicts)))
    if comparing.regressed(verdicts):
        raise typer.Exit(1)


@app.command("report")
def write_report(
    folder: Annotated[Path, typer.Option("--results", help="Folder of the results.")] = result_files.RESULTS,
    page: Page = None,
    html: Html = None,
) -> None:
    """Write results as tables of docs/benchmarks.md (--page), as one HTML file (--html), or both."""
    with _errors_for_people():
        if page:
            written = report.write(folder, page.resolve(), page.resolve().parent / "images")
            console.print(f"{page}: {', '.join(written) or 'no results'}")
        if html:
            console.print(f"{html}: {', '.join(html_report.write(folder, html))}")


if __name__ == "__main__":
    app()
