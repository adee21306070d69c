"""`edge-client doctor` and `edge-client build`: what this device is, what is missing, and its engines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from edge_client.cli.doctor import check
from memory_model.errors import InvalidInput
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


def build(
    bundle: BundleOption = None,
    tensorrt: Annotated[bool, typer.Option("--tensorrt", help="Build TensorRT engines.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Build also what is there.")] = False,
    target: Annotated[
        str, typer.Option(help="GPU to build for, such as SM86, where TensorRT builds for another machine.")
    ] = "",
    cache: Annotated[
        Path | None, typer.Option(help="Folder of engines. [default: ~/.cache/memory3-edge/tensorrt]")
    ] = None,
) -> None:
    """Build TensorRT engines of a bundle (minutes), compare each with the CPU, and keep those that agree.

    Engines fit one graph, TensorRT release and GPU; another release or GPU needs another build.
    """
    if not tensorrt:
        raise InvalidInput("say what to build: edge-client build --tensorrt")
    from edge_client.settings import EdgeSettings
    from edge_client.tensorrt_api import load_tensorrt
    from edge_client.tensorrt_build import build_bundle
    from memory_model.bundle import Bundle

    api = load_tensorrt()
    opened = Bundle.open(bundle or EdgeSettings().bundle)
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=err
    )
    err.print(f"TensorRT {api.version} ({api.name}); Ctrl-C ends the build and keeps its measurements")
    with bars:
        tasks: dict[str, object] = {}

        def tell(phase: str, done: int, steps: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=steps)
            bars.update(tasks[phase], completed=done, total=steps)  # type: ignore[arg-type]

        for outcome in build_bundle(opened, api=api, root=cache, target=target, progress=tell, again=again):
            for task in tasks.values():
                bars.remove_task(task)  # type: ignore[arg-type]
            tasks.clear()
            for finding in outcome.cautions:
                err.print(f"[yellow]caution[/] {outcome.graph}: {finding.operator}: {finding.text}")
            if outcome.was_there:
                out.print(f"{outcome.graph}: {outcome.place} was there")
                continue
            agreement = ", ".join(f"{c.profile}: error {c.error:.2g}" for c in outcome.checks)
            out.print(
                f"{outcome.graph}: {outcome.layers} layers, {outcome.megabytes:.0f} MB, {outcome.seconds:.0f} s; "
                f"{agreement or 'not compared with the CPU: it is for another GPU'}; {outcome.place}",
                soft_wrap=True,
            )


def register(app: typer.Typer, epilog: str = "") -> None:
    """Add this file's commands to the program."""
    app.command(epilog=epilog)(doctor)
    app.command(epilog=epilog)(build)
