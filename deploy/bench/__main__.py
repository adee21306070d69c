"""The benchmark harness: measure a scenario, compare two results, write the report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deploy.bench import report, results
from deploy.bench.scenario import ScenarioFailed, find_scenario, scenario_names
from memory_model.errors import Memory3Error

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)

Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Page = Annotated[Path, typer.Option(help="Page whose marked part is written.")]
Quick = Annotated[bool, typer.Option("--quick", help="Few rounds: to try it out.")]


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
    scenario: Annotated[str, typer.Argument(help="A scenario's name.")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A setting instead of the default: name=value (YAML).")
    ] = None,
    quick: Quick = False,
    out: Out = results.RESULTS,
) -> None:
    """Measure a scenario, write its result, show its tables."""
    with _errors_for_people():
        found = find_scenario(scenario)
        settings = found.settings_of(assignments or [], quick=quick)
        result = results.measure(found, settings, quick=quick, folder=out)
    report.show(console, found, result)
    console.print(f"written to {out / scenario}.json")


@app.command("all")
def run_all(
    quick: Quick = False,
    leave_out: Annotated[list[str] | None, typer.Option(help="A scenario not to measure.")] = None,
    out: Out = results.RESULTS,
    page: Page = report.PAGE,
) -> None:
    """Measure every scenario, one after the other, and write the report; exits with 2 at the end if any failed."""
    failed = []
    for name in scenario_names():
        if name in (leave_out or ()):
            continue
        console.rule(name)
        try:
            found = find_scenario(name)
            settings = found.settings_of(quick=quick)
            report.show(console, found, results.measure(found, settings, quick=quick, folder=out))
        except (ScenarioFailed, Memory3Error, OSError) as error:
            _tell(error)
            failed.append(name)
    write_report(out, page)
    if failed:
        console.print(f"without a result: {', '.join(failed)}")
        raise typer.Exit(2)


@app.command("list")
def list_scenarios() -> None:
    """The scenarios with what they measure."""
    for name in scenario_names():
        console.print(f"{name:12} {find_scenario(name).summary}", soft_wrap=True)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A result file.")],
    after: Annotated[Path, typer.Argument(help="A later one of the same scenario.")],
    tolerance: Annotated[
        float, typer.Option(min=0, help="Smaller relative changes are none.")
    ] = results.TOLERANCE,
) -> None:
    """Report what became better or worse; exits with 1 if anything became worse."""
    with _errors_for_people():
        one, other = results.read(before), results.read(after)
        verdicts = results.compare(one, other, tolerance)
    for difference in results.differences(one, other):
        console.print(f"[yellow]measured differently[/] – {difference}")
    console.print(report.as_rich(results.sheet(verdicts)))
    if any(verdict.word == "worse" for verdict in verdicts):
        raise typer.Exit(1)


@app.command("report")
def write_report(
    folder: Annotated[Path, typer.Option("--results", help="Folder of the results.")] = results.RESULTS,
    page: Page = report.PAGE,
) -> None:
    """Write the tables of docs/benchmarks.md; what has no newer result keeps its figures and says their age."""
    with _errors_for_people():
        for line in report.write(folder, page.resolve()):
            console.print(line)


if __name__ == "__main__":
    app()
