"""`memory-service doctor`: everything that can be looked at from here, and what to do about it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memory_service.cli.terminal import Address, errors_for_people, plain
from memory_service.settings import CONFIG_VARIABLE, DEFAULT_ADDRESS, load_settings

_COLOURS = {"ok": "green", "look": "yellow", "bad": "red"}


def doctor(
    store: Annotated[
        str | None, typer.Option(help="open the store at this address; no service may have it open")
    ] = None,
    deep: Annotated[
        bool, typer.Option(help="read every payload and compare its checksum (with --store)")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    config: Annotated[Path | None, typer.Option(envvar=CONFIG_VARIABLE, help="TOML file of settings")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Check the files that the settings name, and a running service, or a store that no service has open.

    "look" is said of what works but will need something done. Exits with 1 when something is wrong.
    """
    from memory_service.ops.doctor import check_files, check_service, check_store
    from memory_service.ops.logs import configure_logs

    with errors_for_people():
        settings = load_settings(config, {"store": store} if store else {})
        configure_logs("warning")  # on stderr: what is printed here is for programs too
        findings = check_files(settings)
        if store:
            findings += check_store(store, settings.store_options(), deep=deep)
        else:
            findings += check_service(address)
    if as_json:
        typer.echo(
            json.dumps([{"state": finding.state, **asdict(finding)} for finding in findings], indent=1)
        )
    else:
        table = Table("", "what", "found", "what to do")
        for finding in findings:
            state = f"[{_COLOURS[finding.state]}]{finding.state}[/]"
            table.add_row(state, plain(finding.what), plain(finding.found), plain(finding.remedy))
        Console(width=None if sys.stdout.isatty() else 200).print(table)
    if not all(finding.sound for finding in findings):
        raise typer.Exit(1)
