"""The benchmark harness: measure a scenario, write the report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deploy.bench import outcome, report
from deploy.bench.scenario import SCENARIOS, ScenarioFailed, find_scenario
from memory3.errors import Memory3Error

FAILURES = (ScenarioFailed, Memory3Error, OSError)
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)


def complain(error: Exception) -> None:
    """Say on stderr what failed."""
    Console(stderr=True, highlight=False).print(f"[bold red]failed:[/] {escape(str(error))}", soft_wrap=True)


@app.command()
def run(
    scenarios: Annotated[list[str], typer.Argument(help=f"{', '.join(SCENARIOS)}, or all.")],
    assignments: Annotated[list[str] | None, typer.Option("--set", help="A setting: name=value (YAML).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run few rounds, to try it out.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = outcome.RESULTS,
) -> None:
    """Measure scenarios one by one, write results and show tables; exits with 2 if any fails."""
    failed = []
    for name in SCENARIOS if scenarios == ["all"] else scenarios:
        try:
            found = find_scenario(name)
            settings = found.settings_of(assignments or [], quick=quick)
            report.show(console, outcome.measure(found, settings, quick=quick, folder=out))
        except FAILURES as error:
            complain(error)
            failed.append(name)
            continue
        console.print(f"written to {out / name}.json")
    if failed:
        console.print(f"without a result: {', '.join(failed)}")
        raise typer.Exit(2)


@app.command("report")
def write_report(
    folder: Annotated[Path, typer.Option("--results", help="Folder of the results.")] = outcome.RESULTS,
    page: Annotated[Path, typer.Option(help="Page to write the tables into.")] = report.PAGE,
) -> None:
    """Write the tables of docs/benchmarks.md; scenarios without a result keep their figures."""
    console.print(f"written: {', '.join(report.write(folder, page.resolve())) or 'nothing'}")


if __name__ == "__main__":
    try:
        app()
    except FAILURES as failure:
        complain(failure)
        sys.exit(2)
