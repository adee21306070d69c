"""Commands that set up this device: `doctor` checks it, `pull` downloads."""

from __future__ import annotations

import contextlib
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from edge_client.cli.options import err, out, say, with_options
from edge_client.decoder.providers import PROVIDERS, check_name, nvidia, open_decoder
from edge_client.decoder.providers.provider import Threads
from edge_client.decoder.threads import physical_cores, step_ms
from edge_client.errors import RetrievalError, StorageError, described
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.store import reads
from edge_client.pull.bundle import pull_bundle
from edge_client.pull.pack import pull_pack
from edge_client.pull.transfer import staging_of
from edge_client.settings import EdgeSettings
from edge_client.wire.client import MemoryClient
from memory3.codec.native.library import installed, why_missing
from memory3.codec.payload import Identity
from memory3.errors import CorruptFile, Memory3Error
from memory3.files.bundle import Bundle, Manifest
from memory3.printable import counted, printable
from memory3.runtime.backend import DecoderBackend
from memory3.runtime.onnx_runtime import ort

TEGRA_RELEASE = Path("/etc/nv_tegra_release")
DEVICE_MODEL = Path("/proc/device-tree/model")
FULL_POWER = "MAXN"
"""Both MAXN and MAXN_SUPER: no limit. Other modes halve clocks and with them tokens a second."""
_INDEX = "https://pypi.jetson-ai-lab.io"
WHEELS = {"36.4": "jp6/cu126", "36.5": "jp6/cu126", "38": "sbsa/cu130", "39": "sbsa/cu132"}
"""Where wheels of onnxruntime-gpu are, by the beginning of a Jetson's L4T release (JetPack 6.1 to 7.2)."""


@dataclass(frozen=True)
class Check:
    """One line of `edge-client doctor`: a check and its outcome.

    ok: False where something does not work; None for what is there and never wrong. advice: what to install or do,
    exactly; also where things work but could be faster.
    """

    what: str
    ok: bool | None
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Board:
    """A Jetson. l4t: such as "36.4.3". power_mode: nvpmodel's name of it, empty if it failed."""

    model: str
    l4t: str
    power_mode: str

    @classmethod
    def here(cls) -> Board | None:
        """This machine as a Jetson; None if it is another device."""
        release = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", _text(TEGRA_RELEASE))
        if release is None:
            return None
        mode = re.search(r"NV Power Mode: *(\S+)", _printed("nvpmodel", "-q"))
        return cls(_text(DEVICE_MODEL) or "Jetson", ".".join(release.groups()), mode[1] if mode else "")

    @property
    def wheel(self) -> str:
        """How ONNX Runtime gets its CUDA and TensorRT providers here."""
        where = next((path for start, path in WHEELS.items() if f"{self.l4t}.".startswith(f"{start}.")), "")
        if not where:
            return f"no wheel of onnxruntime-gpu is known for L4T {self.l4t}: update to JetPack 6.2, or build it"
        return f"pip uninstall onnxruntime && pip install onnxruntime-gpu -i {_INDEX}/{where}"


def device_checks(wanted: str, threads: Threads) -> Iterator[Check]:
    """Describe this device. wanted: the provider in the settings; threads: of the decoder."""
    check_name(wanted)
    if (board := Board.here()) is not None:
        yield Check("device", None, f"{board.model}, L4T {board.l4t}")
        low = not board.power_mode.startswith(FULL_POWER)
        advice = "sudo nvpmodel -m 0 (all cores and clocks; may reboot), then sudo jetson_clocks" if low else ""
        yield Check("power mode", None, board.power_mode or "unknown: nvpmodel did not answer", advice)
    else:
        has = "with an" if nvidia.gpu() is not None else "no"
        yield Check("device", None, f"{platform.machine()}, not a Jetson, {has} NVIDIA GPU")
    for name, provider in PROVIDERS.items():
        if not provider.automatic:
            continue
        reason = provider.missing()
        advice = board.wheel if board is not None and reason and (name == wanted or provider.expected()) else ""
        ok = not reason if name == wanted else None
        yield Check(f"provider {name}", ok, reason or f"onnxruntime {ort.__version__} can run it", advice)
    library = installed()
    compiled = f"compiled, {library.name} instructions" if library else "in numpy"
    advice = "" if library else f"faster when compiled ({why_missing()})"
    yield Check("decompression", None, compiled, advice)
    cores = physical_cores()
    many = threads != "auto" and threads > cores
    advice = f"set EDGE_CLIENT_THREADS to {cores} or less: more slow each other down" if many else ""
    chosen = "as many as are fastest" if threads == "auto" else threads
    yield Check("threads", False if many else None, f"{chosen} of {cores} core(s)", advice)


def check(settings: EdgeSettings) -> Iterator[Check]:
    """Run all checks, the device's first; skip those whose prerequisites are missing."""
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
    yield from _local(manifest, settings)
    for what, checks in (("decoder", _decoder), ("embedder", _embedder), ("service", _service)):
        try:
            yield from checks(bundle, settings)
        except Memory3Error as error:
            yield Check(what, False, described(error))


def _local(manifest: Manifest, settings: EdgeSettings) -> Iterator[Check]:
    """The knowledge bases of this device, of all models."""
    try:
        for path in settings.store.files():
            with contextlib.closing(LocalKnowledgeBase.any(path)) as base:
                count, model = len(base.files()), settings.store.model_of(path, base.head)
            ours = reads(manifest, base.head)
            advice = "" if ours else f"edge-client remember --anew --kb {path.stem}, to read its texts with this bundle"
            read = "read by this bundle" if ours else "not read by this bundle"
            yield Check(
                "on this device", None, f"{path.stem}: {counted(count, 'document')}, model {model}, {read}", advice
            )
    except Memory3Error as error:
        yield Check("on this device", False, described(error))


def _decoder(bundle: Bundle, settings: EdgeSettings) -> Iterator[Check]:
    graph = opened_decoder(bundle.decoder, settings, settings.provider)
    took_ms = step_ms(graph)
    speed = f"{took_ms:.1f} ms a token, {1e3 / took_ms:.0f} tokens/s"
    detail = f"{graph.provider}, {graph.threads} thread(s), {speed}"
    yield Check("decoder", not graph.warning, detail, advice=graph.warning)


def opened_decoder(decoder: Path, settings: EdgeSettings, provider: str) -> DecoderBackend:
    """The decoder, opened as these settings say, by a provider."""
    return open_decoder(
        decoder,
        threads=settings.threads,
        provider=provider,
        context=settings.context,
        parallel=settings.parallel,
        model=settings.model,
    )


def _embedder(bundle: Bundle, _: EdgeSettings) -> Iterator[Check]:
    embedder = bundle.embedder()
    if embedder.embedder_id != bundle.manifest.embedder_id:
        yield Check("embedder", False, "its id is not the manifest's: export the bundle again")
        return
    begun = time.perf_counter()
    embedder.embed(["A short text to measure how long a query takes."])
    took_ms = 1e3 * (time.perf_counter() - begun)
    yield Check("embedder", True, f"{embedder.name}, {embedder.dim} numbers, {took_ms:.0f} ms for a short text")


def _service(bundle: Bundle, settings: EdgeSettings) -> Iterator[Check]:
    manifest = bundle.manifest
    client = MemoryClient(
        settings.channel, settings.knowledge_base, bundle.identity, manifest.embedder_id, deadline_s=settings.deadline_s
    )
    with contextlib.closing(client):
        begun = time.perf_counter()
        found = client.describe()
        took_ms = 1e3 * (time.perf_counter() - begun)
        detail = f"{settings.service} answers in {took_ms:.0f} ms, version {found.service_version}"
        yield Check("service", True, detail)
        for what in ("model", "codec", "memory_format", "embedder"):
            theirs, ours = getattr(found, f"{what}_id"), getattr(manifest, f"{what}_id")
            detail = ours[:12] if theirs == ours else f"service {theirs[:12]}, bundle {ours[:12]}"
            advice = "" if theirs == ours else f"edge-client pull --service {settings.service}"
            yield Check(f"{what} of the service".replace("_", " "), theirs == ours, detail, advice)
        answer = client.retrieve(bundle.embedder().embed(["What is this about?"]), k=1)
        number = len(answer.hits[0])
        detail = f"{settings.knowledge_base}: a search finds {'a' if number else 'no'} memory"
        advice = "" if number else f"memory-service ingest FILES --kb {settings.knowledge_base}"
        yield Check("knowledge base", True if number else None, detail, advice)  # a new one is empty


@with_options("bundle", "service", "knowledge_base", "local", "provider", "model")
def doctor(given: dict[str, Any]) -> None:
    """Check device, bundle, decoder, embedder and service."""
    marks = {None: ("info", "dim"), True: ("ok  ", "green"), False: ("FAIL", "red")}
    failed = False
    for result in check(EdgeSettings(**given)):
        out.print(Text.assemble(marks[result.ok], f" {result.what}: {printable(result.detail)}"), soft_wrap=True)
        if result.advice:
            out.print(Text.assemble(("     -> ", "yellow"), result.advice), soft_wrap=True)
        failed = failed or result.ok is False
    if failed:
        raise typer.Exit(1)


def _text(path: Path) -> str:
    """Text of a file, empty if it is missing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\0\n")
    except OSError:
        return ""


def _printed(*command: str) -> str:
    """Output of a program, empty if it is missing, failed or timed out."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


@with_options("service", "bundle", "local", "provider")
def pull(
    given: dict[str, Any],
    knowledge_base: Annotated[
        str | None,
        typer.Option(
            "--kb",
            "--knowledge-base",
            metavar="NAME",
            help="Download this knowledge base to --local instead, for offline use.",
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(metavar="LABEL", help="Download the bundle of this precision; default: what suits --provider."),
    ] = "",
) -> None:
    """Download the service's bundle, or with --kb a memory pack.

    Of several bundles it takes the one that this device's provider runs fastest; all read the same memories.
    After Ctrl-C, run the same command again to resume. Set TLS and the API key by EDGE_CLIENT_TLS, EDGE_CLIENT_CA,
    EDGE_CLIENT_API_KEY and others (docs/edge-guide.md).
    """
    settings = EdgeSettings(**given)
    known = _known(settings.bundle)
    target = settings.bundle if knowledge_base is None else settings.store.path(knowledge_base, known)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=err,
    )
    task = bar.add_task("connecting", total=None)

    def show(done_bytes: int, total_bytes: int, what: str) -> None:
        bar.update(task, completed=done_bytes, total=total_bytes, description=what)

    try:
        with bar:
            if knowledge_base is None:
                manifest = pull_bundle(
                    settings.channel, target, provider=settings.provider, precision=precision, progress=show
                ).manifest
                size = sum(entry.bytes for entry in manifest.files.values())
                summary = f"{manifest.name}, {manifest.precision}, model {manifest.model_id[:12]}"
            else:
                identity = Identity(known.model_id, known.codec_id, known.memory_format_id) if known else None
                head = pull_pack(
                    settings.channel,
                    knowledge_base,
                    target.parent,
                    identity=identity,
                    embedder_id=known.embedder_id if known else "",
                    progress=show,
                )
                size = target.stat().st_size
                summary = f"{counted(head.memories, 'memory')} of {knowledge_base}, revision {head.revision}"
    except (KeyboardInterrupt, RetrievalError, StorageError):
        begun = staging_of(target.absolute()).is_dir()
        kept = "what was fetched so far is kept; run the same command again to resume"
        say(kept if begun else "nothing was fetched")
        raise
    out.print(f"{target}: {summary}, {size / 1e6:.0f} MB, checksums right", soft_wrap=True, markup=False)


def _known(bundle: Path) -> Manifest | None:
    """The manifest of the bundle on this device, if any, so that another model's pack is refused at once."""
    try:
        return Manifest.read(bundle)
    except (OSError, CorruptFile):
        return None
