"""`edge-client doctor` and `edge-client build`: what this device can run, what is missing, its engine made ahead."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from edge_client.cli.device import Check, device_checks
from edge_client.cli.options import with_options
from edge_client.decoder.graph import THREADS, DecoderGraph, step_ms
from edge_client.decoder.providers import EngineCache, cache_folder, missing
from edge_client.errors import described
from edge_client.settings import EdgeSettings
from edge_client.wire.client import MemoryClient
from memory_model.bundle import Bundle
from memory_model.errors import Memory3Error
from memory_model.printable import printable

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def check(settings: EdgeSettings) -> Iterator[Check]:
    """Run all checks, the device's first; those that need what is missing are left out."""
    yield from device_checks(settings.provider, settings.threads)
    try:
        bundle = Bundle.open(settings.bundle)
    except Memory3Error as error:
        yield Check("bundle", False, described(error))
        return
    manifest = bundle.manifest
    files = f"{len(manifest.files)} files, {sum(f.bytes for f in manifest.files.values()) / 1e6:.0f} MB"
    name = f"{manifest.name}, {manifest.precision}, model {manifest.model_id[:12]}"
    yield Check("bundle", True, f"{name}, {files}, checksums right")
    for what, checks in (("decoder", _decoder), ("embedder", _embedder), ("service", _service)):
        try:
            yield from checks(bundle, settings)
        except Memory3Error as error:
            yield Check(what, False, described(error))


def _decoder(bundle: Bundle, settings: EdgeSettings) -> Iterator[Check]:
    graph = _opened(bundle.decoder, settings, settings.provider)
    took_ms = step_ms(graph)
    detail = (
        f"{graph.provider}, {graph.threads} thread(s), {took_ms:.1f} ms a token, {1e3 / took_ms:.0f} tokens/s"
    )
    yield Check("decoder", not graph.warning, detail, advice=graph.warning)


def _opened(decoder: Path, settings: EdgeSettings, provider: str) -> DecoderGraph:
    return DecoderGraph.open(
        decoder, threads=settings.threads, provider=provider, context=settings.context, parallel=settings.parallel
    )  # fmt: skip


def _embedder(bundle: Bundle, _: EdgeSettings) -> Iterator[Check]:
    embedder = bundle.embedder()
    if embedder.embedder_id != bundle.manifest.embedder_id:
        yield Check("embedder", False, "its id is not the manifest's: export the bundle again")
        return
    begun = time.perf_counter()
    embedder.embed(["A short text to measure how long a query takes."])
    took_ms = 1e3 * (time.perf_counter() - begun)
    yield Check(
        "embedder", True, f"{embedder.name}, {embedder.dim} numbers, {took_ms:.0f} ms for a short text"
    )


def _service(bundle: Bundle, settings: EdgeSettings) -> Iterator[Check]:
    manifest = bundle.manifest
    client = MemoryClient(
        settings.channel, settings.knowledge_base, bundle.identity, manifest.embedder_id, deadline_s=settings.deadline_s
    )  # fmt: skip
    with contextlib.closing(client):
        begun = time.perf_counter()
        found = client.describe()
        took_ms = 1e3 * (time.perf_counter() - begun)
        said = f"{settings.service} answers in {took_ms:.0f} ms, version {found.service_version}"
        yield Check("service", True, said)
        for what in ("model", "codec", "memory_format", "embedder"):
            theirs, ours = getattr(found, f"{what}_id"), getattr(manifest, f"{what}_id")
            detail = ours[:12] if theirs == ours else f"service {theirs[:12]}, bundle {ours[:12]}"
            advice = "" if theirs == ours else f"edge-client pull --service {settings.service}"
            yield Check(f"{what} of the service".replace("_", " "), theirs == ours, detail, advice=advice)
        answer = client.retrieve(bundle.embedder().embed(["What is this about?"]), k=1)
        number = len(answer.hits[0])
        said = f"{settings.knowledge_base}: {number or 'no'} memory found"
        advice = "" if number else f"memory-service ingest FILES --kb {settings.knowledge_base}"
        yield Check("knowledge base", number > 0, said, advice=advice)


@with_options("bundle", "service", "knowledge_base", "provider")
def doctor(
    given: dict[str, Any],
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Check this device, its bundle, decoder, embedder and service: what runs where, why not elsewhere, what to do."""
    settings = EdgeSettings(**given)
    results = []
    for result in check(settings):
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


@with_options("bundle", "provider")
def build(
    given: dict[str, Any],
    again: Annotated[bool, typer.Option("--again", help="Make it anew.")] = False,
) -> None:
    """Make what the decoder needs on this device ahead of time: TensorRT's engine (minutes), or the number of threads.

    An engine fits one bundle, context, TensorRT and GPU; it is kept in the bundle's folder `cache`.
    """
    settings = EdgeSettings(**given)
    wanted = settings.provider
    if wanted == "auto" and not missing("tensorrt"):
        wanted = "tensorrt"
    decoder = Bundle.open(settings.bundle).decoder
    folder = cache_folder(decoder)
    if again:
        (folder / THREADS).unlink(missing_ok=True)
    engines = None
    if wanted == "tensorrt" and not missing(wanted):
        engines = EngineCache.of(decoder, folder, settings.context, settings.parallel)
        if again and engines is not None:
            engines.clear()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err) as progress:
        progress.add_task(f"{wanted}: opening {decoder}, which builds what is missing", total=None)
        graph = _opened(decoder, settings, wanted)
        took_ms = step_ms(graph)
    made = sorted(engines.folder.glob("*.engine")) if engines is not None else []
    kept = ", ".join(f"{path} ({path.stat().st_size / 1e6:.0f} MB)" for path in made) or f"kept in {folder}"
    out.print(
        f"{graph.provider}, {graph.threads} thread(s), {took_ms:.1f} ms a token; {kept}", soft_wrap=True
    )
    if graph.warning:
        err.print(f"[yellow]{graph.warning}[/]", soft_wrap=True)
