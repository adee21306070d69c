"""`edge-client pull`: fetches the bundle, or a knowledge base for offline use, and shows how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from edge_client.cli.options import ServiceOption
from edge_client.errors import RetrievalError, StorageError
from edge_client.local.folder import path_of
from edge_client.pull.bundle import pull_bundle
from edge_client.pull.pack import pull_pack
from edge_client.pull.staging import Progress as ShowProgress
from edge_client.pull.staging import Staging
from edge_client.settings import EdgeSettings
from memory_model.bundle import MANIFEST, Manifest
from memory_model.codec.payload import Identity
from memory_model.errors import CorruptFile

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def pull(
    service: ServiceOption = None,
    out_folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the bundle, or of local knowledge bases. [default: build/bundle, build/local]",
        ),
    ] = None,
    knowledge_base: Annotated[
        str | None,
        typer.Option(
            "--knowledge-base",
            "--kb",
            metavar="NAME",
            help="Fetch this knowledge base's memories as a pack instead, for offline use.",
        ),
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Bundle that shall read the pack. [default: build/bundle]")
    ] = None,
) -> None:
    """Fetch the service's edge bundle, or with --knowledge-base a memory pack to be searched on this device.

    Ctrl-C keeps what was fetched: the same command goes on there. TLS and API key: EDGE_CLIENT_TLS, EDGE_CLIENT_CA,
    EDGE_CLIENT_API_KEY and others, see the edge guide.
    """
    given = {k: v for k, v in {"service": service, "bundle": bundle}.items() if v is not None}
    settings = EdgeSettings(**given)  # type: ignore[arg-type]
    place = out_folder or (settings.bundle if knowledge_base is None else settings.local)
    if knowledge_base is not None:
        folder, place = place, path_of(place, knowledge_base)
    try:
        with _bar() as show:
            if knowledge_base is None:
                manifest = pull_bundle(settings.channel, place, progress=show).manifest
                size = sum(entry.bytes for entry in manifest.files.values())
                said = f"{manifest.name}, {manifest.precision}, model {manifest.model_id[:12]}"
            else:
                head = pull_pack(
                    settings.channel, knowledge_base, folder, progress=show, **_known(settings.bundle)
                ).head
                size = place.stat().st_size
                said = f"{head.memories} memories of {knowledge_base}, revision {head.revision}"
        out.print(f"{place}: {said}, {size / 1e6:.0f} MB, checksums right", soft_wrap=True, markup=False)
    except KeyboardInterrupt:
        err.print(f"\ninterrupted; {_kept(place)}", soft_wrap=True)
        raise
    except (RetrievalError, StorageError):
        err.print(f"[dim]{_kept(place)}[/]", soft_wrap=True)
        raise


def _kept(place: Path) -> str:
    if Staging(place).folder.is_dir():
        return "what was fetched so far is kept; the same command goes on where it stopped"
    return "nothing was fetched"


def _known(bundle: Path) -> dict[str, Any]:
    """What the bundle on this device can read, if there is one: another model's pack is then refused at once."""
    try:
        manifest = Manifest.from_json((bundle / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, CorruptFile):
        return {}
    identity = Identity(manifest.model_id, manifest.codec_id, manifest.memory_format_id)
    return {"identity": identity, "embedder_id": manifest.embedder_id}


@contextmanager
def _bar() -> Iterator[ShowProgress]:
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
        console=err,
    )  # fmt: skip
    with bar:
        task = bar.add_task("connecting", total=None)

        def show(done_bytes: int, total_bytes: int, what: str) -> None:
            bar.update(task, completed=done_bytes, total=total_bytes, description=what)

        yield show
