"""Checks of a device, one by one: each says what is, and what to do if that is not right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from edge_client.cli.check import Check
from edge_client.cli.device_checks import device_checks
from edge_client.decoder.batch import Decoder
from edge_client.errors import RetrievalError
from edge_client.settings import EdgeSettings
from edge_client.wire.client import MemoryClient
from memory_model.bundle import Bundle
from memory_model.errors import Memory3Error

STEPS = 32


def check(
    *,
    bundle: Path | None = None,
    service: str | None = None,
    knowledge_base: str | None = None,
    provider: str | None = None,
) -> Iterator[Check]:
    """Run all checks, the device's first; those that need what is missing are left out."""
    given = {"bundle": bundle, "service": service, "knowledge_base": knowledge_base, "provider": provider}
    settings = EdgeSettings(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
    yield from device_checks(settings.provider, settings.threads)
    try:
        opened = Bundle.open(settings.bundle)
        manifest = opened.manifest
        total = sum(f.bytes for f in manifest.files.values())
        yield Check(
            "bundle",
            True,
            f"{manifest.name}, {manifest.precision}, model {manifest.model_id[:12]}, {len(manifest.files)} files, "
            f"{total / 1e6:.0f} MB, checksums right",
        )
    except Memory3Error as error:
        yield Check("bundle", False, f"{type(error).__name__}: {error}")
        return
    yield _decoder(opened, settings.threads, settings.provider)
    yield _embedder(opened)
    yield from _service(opened, settings)


def _decoder(bundle: Bundle, threads: int, provider: str) -> Check:
    try:
        decoder = Decoder.open(bundle, threads=threads, provider=provider, parallel=1)
        graph, text = decoder.graph, decoder.sequence()
        token = bundle.tokenizer.bos_id
        text.read([token])
        begun = time.perf_counter()
        for _ in range(STEPS):
            token = int(text.read([token])[0].argmax())
        speed = STEPS / (time.perf_counter() - begun)
    except Memory3Error as error:
        return Check("decoder", False, f"{type(error).__name__}: {error}")
    detail = f"{graph.provider}, {threads} thread(s), {speed:.0f} tokens/s"
    return Check("decoder", not graph.warning, detail, advice=graph.warning)


def _embedder(bundle: Bundle) -> Check:
    try:
        embedder = bundle.embedder()
        if embedder.embedder_id != bundle.manifest.embedder_id:
            return Check("embedder", False, "its id is not the manifest's: export the bundle again")
        begun = time.perf_counter()
        embedder.embed(["A short text to measure how long a query takes."])
        took_ms = 1e3 * (time.perf_counter() - begun)
    except Memory3Error as error:
        return Check("embedder", False, f"{type(error).__name__}: {error}")
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
            same = theirs == ours
            detail = (
                f"{ours[:12]}"
                if same
                else f"service {theirs[:12]}, bundle {ours[:12]}: use the matching bundle"
            )
            yield Check(f"{what} of the service", same, detail)
        answer = client.retrieve(bundle.embedder().embed(["What is this about?"]), k=1, return_text=False)
        hits = len(answer.hits[0])
        yield Check("knowledge base", hits > 0, f"{settings.knowledge_base}: {hits or 'no'} memory found")
    except RetrievalError as error:
        yield Check("service", False, f"{type(error).__name__}: {error}")
    finally:
        client.close()
