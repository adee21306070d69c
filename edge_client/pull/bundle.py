"""Fetches the edge bundle from the service: of its bundles the one that suits this device (`variants`).

manifest.json -> names and sizes checked, room checked -> file by file from its offset -> SHA-256 -> install
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge_client.decoder.providers import AUTO
from edge_client.pull.transfer import Progress, ended, require_room, resumed, staged, stream
from edge_client.pull.variants import chosen, offered
from memory3.channel import ChannelSettings, open_channel
from memory3.digest import file_sha256
from memory3.errors import CorruptFile, Memory3Error
from memory3.files.bundle import MANIFEST, REQUIRED, Bundle, FileEntry, Manifest, check_place, replace_folder
from protos.memory.v1 import models_pb2, models_pb2_grpc

LARGEST_MANIFEST_BYTES = 4 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def pull_bundle(
    channel: ChannelSettings,
    target: Path,
    *,
    provider: str = AUTO,
    precision: str = "",
    progress: Progress = lambda *_: None,
) -> Bundle:
    """Fetch the service's bundle to the folder `target`; an older bundle there is replaced when the new one is whole.

    provider, precision: choose among the service's bundles, see `variants.chosen`; one that is there already stays.

    Interrupted, by Ctrl-C or whatever, the next call goes on where it stopped; equal files of the older bundle do not
    come again. Raises RetrievalError, StorageError, InvalidInput for a target of something else, CorruptFile for
    a manifest that is none or a file that does not become what the manifest says.
    """
    target = target.absolute()
    check_place(target)
    with staged(target) as folder, open_channel(channel) as opened:
        stub = models_pb2_grpc.ModelsStub(opened)
        variant = chosen(resumed(lambda: offered(stub, channel), lambda: 0), provider, precision)
        if variant is not None and (there := _installed(target, variant.id)):
            return there
        return _BundlePull(channel, stub.FetchBundle, variant.id if variant else "", progress).run(folder, target)


def _installed(target: Path, manifest_sha256: str) -> Bundle | None:
    """The bundle that is there, if it is this one and whole."""
    with contextlib.suppress(OSError, Memory3Error):
        if hashlib.sha256((target / MANIFEST).read_bytes()).hexdigest() == manifest_sha256:
            return Bundle.open(target)
    return None


class _BundlePull:
    """One run. While it comes, a file's name ends with its SHA-256, so what a run left is known by its name."""

    def __init__(self, channel: ChannelSettings, method: Any, variant: str, progress: Progress) -> None:
        self._channel, self._method, self._variant, self._progress = channel, method, variant, progress
        self._done: dict[str, int] = {}  # bytes of every file
        self._total_bytes = 0

    def run(self, folder: Path, target: Path) -> Bundle:
        raw = resumed(self._manifest, lambda: 0)
        manifest = checked_manifest(raw)
        self._total_bytes = sum(entry.bytes for entry in manifest.files.values())
        files = {name: (entry, folder / f"{name}.{entry.sha256}") for name, entry in manifest.files.items()}
        for path in set(folder.iterdir()) - {part for _, part in files.values()}:
            path.unlink()
        for name, (entry, part) in files.items():
            older = target / name
            if not _size(part) and older.is_file() and older.stat().st_size == entry.bytes:
                with contextlib.suppress(OSError):  # no hard links here: it comes again
                    os.link(older, part)
        require_room(folder, sum(max(entry.bytes - _size(part), 0) for entry, part in files.values()))
        for name, (entry, part) in files.items():
            self._complete(name, entry, part)
        for name, (_, part) in files.items():
            part.rename(folder / name)
        (folder / MANIFEST).write_bytes(raw)
        for path in folder.iterdir():
            with path.open("rb") as written:
                os.fsync(written.fileno())
        replace_folder(folder, target)
        return Bundle(target, manifest)

    def _manifest(self) -> bytes:
        raw = b""
        for piece in self._pieces(MANIFEST, 0):
            raw += piece.data
            if max(piece.file_bytes, len(raw)) > LARGEST_MANIFEST_BYTES:
                raise CorruptFile(f"the service's {MANIFEST} has {piece.file_bytes} bytes: it is none")
        return raw

    def _complete(self, name: str, entry: FileEntry, part: Path) -> None:
        """Make the file whole and right; one that does not become so is fetched anew, once."""
        for _ in range(2):
            resumed(lambda: self._fetch(name, entry, part), lambda: _size(part))
            if file_sha256(part) == entry.sha256:
                return
            part.unlink()
        raise CorruptFile(
            f"{name} of the service at {self._channel.address} is not what its manifest says (SHA-256 differs):"
            " its operator exports the bundle again"
        )

    def _fetch(self, name: str, entry: FileEntry, part: Path) -> None:
        """Append what is missing."""
        with part.open("ab") as file:
            offset = file.tell()
            self._show(name, offset)
            for piece in self._pieces(name, offset) if offset < entry.bytes else ():
                data = piece.data
                if (piece.offset, piece.file_bytes) != (offset, entry.bytes) or offset + len(data) > entry.bytes:
                    message = f"{name} changed on the service while it was fetched: run the same command again"
                    raise CorruptFile(message)
                file.write(data)
                offset += len(data)
                self._show(name, offset)
        if offset < entry.bytes:
            raise ended(name, offset, entry.bytes)

    def _pieces(self, name: str, offset: int) -> Iterator[models_pb2.FetchBundleResponse]:
        request = models_pb2.FetchBundleRequest(file=name, offset=offset, variant=self._variant)
        return stream(self._channel, self._method, request)

    def _show(self, name: str, done_bytes: int) -> None:
        self._done[name] = done_bytes
        self._progress(sum(self._done.values()), self._total_bytes, name)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def checked_manifest(raw: bytes) -> Manifest:
    """A manifest whose files may be written: plain names, sizes that can be; raises CorruptFile."""
    manifest = Manifest.from_json(raw)
    for name, entry in manifest.files.items():
        if not _PLAIN_NAME.fullmatch(name) or name == MANIFEST:
            raise CorruptFile(f"the service's {MANIFEST} lists {name[:200]!r}, which is no plain file name: refused")
        if not isinstance(entry.bytes, int) or entry.bytes < 0 or not _SHA256.fullmatch(str(entry.sha256)):
            raise CorruptFile(f"the service's {MANIFEST} gives no size and SHA-256 of {name}")
    if missing := [name for name in REQUIRED if name not in manifest.files]:
        raise CorruptFile(f"the service's {MANIFEST} does not list {', '.join(missing)}")
    return manifest
