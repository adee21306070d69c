"""`edge-client pull`: fetches the bundle, or a knowledge base for offline use, and shows how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from edge_client.cli.options import with_options
from edge_client.errors import RetrievalError, StorageError
from edge_client.local.folder import path_of
from edge_client.pull.bundle import Progress as ShowProgress
from edge_client.pull.bundle import Staging, pull_bundle
from edge_client.pull.pack import pull_pack
from edge_client.settings import EdgeSettings
from memory_model.bundle import MANIFEST, Manifest
from memory_model.codec.payload import Identity
from memory_model.errors import CorruptFile

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


@with_options("service", "bundle", "local")
def pull(
    given: dict[str, Any],
    knowledge_base: Annotated[
        str | None,
        typer.Option(
            "--knowledge-base", "--kb", metavar="NAME",
            help="Fetch this knowledge base's memories instead, to --local, for offline use.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Fetch the service's edge bundle to --bundle, or with --kb a memory pack to be searched on this device.

    Ctrl-C keeps what was fetched: the same command goes on there. TLS and API key: EDGE_CLIENT_TLS, EDGE_CLIENT_CA,
    EDGE_CLIENT_API_KEY and others, see the edge guide.
    """
    settings = EdgeSettings(**given)
    place = settings.bundle if knowledge_base is None else path_of(settings.local, knowledge_base)
    try:
        with _bar() as show:
            if knowledge_base is None:
                manifest = pull_bundle(settings.channel, place, progress=show).manifest
                size = sum(entry.bytes for entry in manifest.files.values())
                said = f"{manifest.name}, {manifest.precision}, model {manifest.model_id[:12]}"
            else:
                known = _known(settings.bundle)
                pack = pull_pack(settings.channel, knowledge_base, settings.local, progress=show, **known)
                size = place.stat().st_size
                said = f"{pack.head.memories} memories of {knowledge_base}, revision {pack.head.revision}"
    except (KeyboardInterrupt, RetrievalError, StorageError):
        begun = Staging(place).folder.is_dir()
        kept = "what was fetched so far is kept; the same command goes on where it stopped"
        err.print(kept if begun else "nothing was fetched", soft_wrap=True)
        raise
    out.print(f"{place}: {said}, {size / 1e6:.0f} MB, checksums right", soft_wrap=True, markup=False)


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
