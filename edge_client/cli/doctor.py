"""`edge-client doctor` and `edge-client build`: what this device can run, what is missing, its engine made ahead."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from edge_client.cli.device import Check, device_checks
from edge_client.cli.options import BundleOption, KnowledgeBaseOption, ProviderOption, ServiceOption
from edge_client.decoder.graph import THREADS, DecoderGraph, step_ms
from edge_client.decoder.providers import EngineCache, cache_folder, missing
from edge_client.errors import RetrievalError
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
        yield Check("bundle", False, f"{error.reason}: {error}")
        return
    manifest = bundle.manifest
    total = sum(f.bytes for f in manifest.files.values())
    yield Check(
        "bundle",
        True,
        f"{manifest.name}, {manifest.precision}, model {manifest.model_id[:12]}, {len(manifest.files)} files, "
        f"{total / 1e6:.0f} MB, checksums right",
    )
    yield _decoder(bundle, settings)
    yield _embedder(bundle)
    yield from _service(bundle, settings)


def _decoder(bundle: Bundle, settings: EdgeSettings) -> Check:
    try:
        graph = _opened(bundle.decoder, settings, settings.provider)
        took_ms = step_ms(graph)
    except Memory3Error as error:
        return Check("decoder", False, f"{error.reason}: {error}")
    detail = (
        f"{graph.provider}, {graph.threads} thread(s), {took_ms:.1f} ms a token, {1e3 / took_ms:.0f} tokens/s"
    )
    return Check("decoder", not graph.warning, detail, advice=graph.warning)


def _opened(decoder: Path, settings: EdgeSettings, provider: str) -> DecoderGraph:
    return DecoderGraph.open(
        decoder,
        threads=settings.threads,
        provider=provider,
        context=settings.context,
        parallel=settings.parallel,
    )


def _embedder(bundle: Bundle) -> Check:
    try:
        embedder = bundle.embedder()
        if embedder.embedder_id != bundle.manifest.embedder_id:
            return Check("embedder", False, "its id is not the manifest's: export the bundle again")
        begun = time.perf_counter()
        embedder.embed(["A short text to measure how long a query takes."])
        took_ms = 1e3 * (time.perf_counter() - begun)
    except Memory3Error as error:
        return Check("embedder", False, f"{error.reason}: {error}")
    return Check(
        "embedder", True, f"{embedder.name}, {embedder.dim} numbers, {took_ms:.0f} ms for a short text"
    )


def _service(bundle: Bundle, settings: EdgeSettings) -> Iterator[Check]:
    manifest = bundle.manifest
    client = MemoryClient(
        settings.channel, settings.knowledge_base, bundle.identity, manifest.embedder_id, deadline_s=settings.deadline_s
    )  # fmt: skip
    try:
        begun = time.perf_counter()
        found = client.describe()
        took_ms = 1e3 * (time.perf_counter() - begun)
        yield Check(
            "service",
            True,
            f"{settings.service} answers in {took_ms:.0f} ms, version {found.service_version}",
        )
        for what, theirs, ours in (
            ("model", found.model_id, manifest.model_id),
            ("codec", found.codec_id, manifest.codec_id),
            ("memory format", found.memory_format_id, manifest.memory_format_id),
            ("embedder", found.embedder_id, manifest.embedder_id),
        ):
            detail = f"service {theirs[:12]}, bundle {ours[:12]}: use the matching bundle"
            yield Check(f"{what} of the service", theirs == ours, ours[:12] if theirs == ours else detail)
        answer = client.retrieve(bundle.embedder().embed(["What is this about?"]), k=1, return_text=False)
        hits = len(answer.hits[0])
        yield Check("knowledge base", hits > 0, f"{settings.knowledge_base}: {hits or 'no'} memory found")
    except RetrievalError as error:
        yield Check("service", False, f"{error.reason}: {error}")
    finally:
        client.close()


def doctor(
    bundle: BundleOption = None,
    service: ServiceOption = None,
    knowledge_base: KnowledgeBaseOption = None,
    provider: ProviderOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Check this device, its bundle, decoder, embedder and service: what runs where, why not elsewhere, what to do."""
    given = {"bundle": bundle, "service": service, "knowledge_base": knowledge_base, "provider": provider}
    settings = EdgeSettings(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
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


def build(
    bundle: BundleOption = None,
    provider: ProviderOption = None,
    again: Annotated[bool, typer.Option("--again", help="Make it anew.")] = False,
) -> None:
    """Make what the decoder needs on this device ahead of time: TensorRT's engine (minutes), or the number of threads.

    An engine fits one bundle, context, TensorRT and GPU; it is kept in the bundle's folder `cache`.
    """
    given = {"bundle": bundle, "provider": provider}
    settings = EdgeSettings(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
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
