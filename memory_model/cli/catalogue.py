"""Fetch base models by name, and list them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memory_model.terminal import console, progress_bars


def pull(
    name: Annotated[str, typer.Argument(help="A name that `memory-model list` shows.")],
    source: Annotated[
        Path | None, typer.Option("--from", help="The file itself or a folder that has it, in place of a download.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show progress and errors, nothing else.")] = False,
) -> None:
    """Fetch a base model into the cache of this user, and check its SHA-256.

    Sources, in this order: the publisher's repository on the Hugging Face hub (HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE
    apply), then Python packages through pip with your settings. An interrupted download continues. Use the model
    as `catalogue:NAME` wherever a base is named.
    """
    from memory_model.catalogue.pull import pull as fetch
    from memory_model.catalogue.table import entry_of

    entry = entry_of(name)
    there = entry.fetched
    with progress_bars(bytes_of=True) as bars:
        task = bars.add_task(f"{entry.name} (there, being checked)" if there else entry.name, total=entry.bytes)
        path = fetch(
            entry, source, lambda way, done: bars.update(task, completed=done, description=f"{entry.name} ({way})")
        )
        bars.update(task, completed=entry.bytes)
    if there and source is not None:
        console.print(f"{entry.name} was in the cache already: {source} was not read")
    if quiet:
        return
    console.print(f"{entry.name}: {entry.about}, {entry.licence}, SHA-256 checked, in [bold]{path}[/bold]")
    console.print(f"next: `memory-model new catalogue:{entry.name} --heads all --out {entry.name}`")


def list_models() -> None:
    """List the base models of the catalogue and the packaged model folders."""
    from memory_model.catalogue.table import entries
    from memory_model.defaults import MODEL
    from memory_model.models.folder import packaged_models

    table = Table("base", "what", "MB", "licence", "fetched")
    for entry in entries().values():
        there = "yes" if entry.fetched else "as a package" if entry.installed else "no"
        table.add_row(entry.name, entry.about, f"{entry.bytes / 1e6:,.0f}", entry.licence, there)
    Console().print(table)
    names = (f"{name} (default)" if name == MODEL else name for name in packaged_models())
    Console().print(f"packaged model folders, for --model: {', '.join(names)}")
