"""`edge-client doctor` and `edge-client build`: what this device is, what is missing, and its engines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from edge_client.cli.doctor import check
from memory_model.printable import printable

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

BundleOption = Annotated[
    Path | None, typer.Option("--bundle", help="Folder of the edge bundle. [default: build/bundle]")
]


def doctor(
    bundle: BundleOption = None,
    service: Annotated[
        str | None, typer.Option("--service", help="host:port of the service. [default: 127.0.0.1:7430]")
    ] = None,
    knowledge_base: Annotated[
        str | None,
        typer.Option(
            "--knowledge-base", "--kb", help="Whose memories are read; several as a,b. [default: default]"
        ),
    ] = None,
    provider: Annotated[
        str | None, typer.Option("--provider", help="auto, cpu, cuda or tensorrt. [default: auto]")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Say what this device has, check bundle, decoder, embedder and service, and what to do about what is wrong."""
    results = []
    for result in check(bundle=bundle, service=service, knowledge_base=knowledge_base, provider=provider):
        results.append(result)
        if json_output:
            continue
        mark = ("info", "dim") if result.fact else ("ok  ", "green") if result.ok else ("FAIL", "red")
        out.print(Text.assemble(mark, f" {result.what}: {printable(result.detail)}"), soft_wrap=True)
        if result.advice:
            out.print(Text.assemble(("     -> ", "yellow"), result.advice), soft_wrap=True)
    ok = all(r.ok for r in results)
    if json_output:
        print(json.dumps({"ok": ok, "checks": [asdict(r) for r in results]}, ensure_ascii=False, indent=2))
    if not ok:
        raise typer.Exit(1)


def register(app: typer.Typer, epilog: str = "") -> None:
    """Add this file's commands to the program."""
    app.command(epilog=epilog)(doctor)
