"""Fetches the edge bundle from the service: resumable, every file checked against the manifest, installed whole.

manifest.json -> names and sizes checked, room checked -> file by file from its offset -> SHA-256 -> install
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from edge_client.errors import RetrievalError
from edge_client.pull.staging import CALL_S, Progress, Staging, messages, resumed, silent
from edge_client.wire.channel import ChannelSettings, open_channel
from memory_model.bundle import MANIFEST, REQUIRED, Bundle, FileEntry, Manifest, check_place
from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile, Memory3Error
from protos.memory.v1 import models_pb2, models_pb2_grpc

LARGEST_MANIFEST_BYTES = 4 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def pull_bundle(
    channel: ChannelSettings, place: Path, *, progress: Progress = silent, call_s: float = CALL_S
) -> Bundle:
    """Fetch the service's bundle to the folder `place`; an older bundle there is replaced when the new one is whole.

    Interrupted, by Ctrl-C or whatever, the next call goes on where it stopped. call_s: deadline of one stream.
    Raises RetrievalError, StorageError, InvalidInput for a place that holds
    something else, CorruptFile for a manifest that is none or a file that does not become what the manifest says.
    """
    check_place(place)
    with Staging(place) as staging:
        return _BundlePull(staging, channel, progress, call_s).run()


class _BundlePull:
    """One run. A file is NAME.part while it comes and NAME once it is whole."""

    def __init__(self, staging: Staging, channel: ChannelSettings, progress: Progress, call_s: float) -> None:
        self._staging, self._folder = staging, staging.folder
        self._channel, self._progress, self._call_s = channel, progress, call_s
        self._done: dict[str, int] = {}  # bytes of every file
        self._total_bytes = 0

    def run(self) -> Bundle:
        with open_channel(self._channel) as opened:
            self._stub = models_pb2_grpc.ModelsStub(opened)
            raw = resumed(self._manifest, lambda: 0)
            manifest = checked_manifest(raw)
            self._total_bytes = sum(entry.bytes for entry in manifest.files.values())
            with self._staging.room():
                self._reuse(manifest, raw)
            missing = (max(entry.bytes - self._size(name), 0) for name, entry in manifest.files.items())
            self._staging.require_room(sum(missing))
            for name, entry in manifest.files.items():
                self._complete(name, entry)
        self._staging.install()
        return Bundle(self._staging.place, manifest)

    def _manifest(self) -> bytes:
        raw = b""
        for piece in self._stream(MANIFEST, 0):
            raw += piece.data
            if max(piece.file_bytes, len(raw)) > LARGEST_MANIFEST_BYTES:
                raise CorruptFile(f"the service's {MANIFEST} has {piece.file_bytes} bytes: it is none")
        return raw

    def _reuse(self, manifest: Manifest, raw: bytes) -> None:
        """Keep an earlier run's parts of the same files, and take equal files of the bundle that is at the place."""
        try:
            earlier = Manifest.from_json((self._folder / MANIFEST).read_text(encoding="utf-8")).files
        except (OSError, ValueError, Memory3Error):
            earlier = {}
        same = {name for name, entry in manifest.files.items() if earlier.get(name) == entry}
        for path in self._folder.iterdir():
            if path.name.removesuffix(".part") not in same:
                path.unlink()
        (self._folder / MANIFEST).write_bytes(raw)
        for name, entry in manifest.files.items():
            older, here = self._staging.place / name, self._folder / name
            if self._size(name) == 0 and older.is_file() and older.stat().st_size == entry.bytes:
                try:
                    os.link(older, here)
                except OSError:
                    shutil.copyfile(older, here)

    def _size(self, name: str) -> int:
        paths = (self._folder / name, self._folder / f"{name}.part")
        return next((path.stat().st_size for path in paths if path.is_file()), 0)

    def _complete(self, name: str, entry: FileEntry) -> None:
        """Make the file whole and right; one that does not become so is fetched anew, once."""
        whole, part = self._folder / name, self._folder / f"{name}.part"
        for _ in range(2):
            if not whole.is_file():
                resumed(lambda: self._fetch(name, entry, part), lambda: self._size(name))
                part.rename(whole)
            if whole.stat().st_size == entry.bytes and file_sha256(whole) == entry.sha256:
                self._show(name, entry.bytes)
                return
            whole.unlink()
        raise CorruptFile(
            f"{name} of the service at {self._channel.address} is not what its manifest says (SHA-256 differs):"
            " its operator exports the bundle again"
        )

    def _fetch(self, name: str, entry: FileEntry, part: Path) -> None:
        """Append what is missing."""
        with self._staging.room(), part.open("ab") as file:
            if file.tell() > entry.bytes:
                file.truncate(0)
            offset = os.fstat(file.fileno()).st_size
            self._show(name, offset)
            if offset == entry.bytes:
                return
            for piece in self._stream(name, offset):
                data = piece.data
                if (piece.offset, piece.file_bytes) != (offset, entry.bytes) or offset + len(data) > entry.bytes:
                    message = f"{name} changed on the service while it was fetched: run the same command again"
                    raise CorruptFile(message)
                file.write(data)
                offset += len(data)
                self._show(name, offset)
        if offset < entry.bytes:
            message = f"{name} ended after {offset} of {entry.bytes} bytes"
            raise RetrievalError(message, reason="UNREACHABLE", unavailable=True)

    def _stream(self, name: str, offset: int) -> Iterator[models_pb2.FetchBundleResponse]:
        call = self._stub.FetchBundle(
            models_pb2.FetchBundleRequest(file=name, offset=offset), timeout=self._call_s,
            metadata=self._channel.metadata,
        )  # fmt: skip
        return messages(call, self._channel.address, self._call_s)

    def _show(self, name: str, done_bytes: int) -> None:
        self._done[name] = done_bytes
        self._progress(sum(self._done.values()), self._total_bytes, name)


def checked_manifest(raw: bytes) -> Manifest:
    """A manifest whose files may be written: plain names, sizes that can be; raises CorruptFile."""
    try:
        manifest = Manifest.from_json(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CorruptFile(f"the service's {MANIFEST} is not text") from error
    for name, entry in manifest.files.items():
        if not _PLAIN_NAME.fullmatch(name) or name == MANIFEST or name.endswith(".part"):
            raise CorruptFile(f"the service's {MANIFEST} lists {name[:200]!r}, which is no plain file name: refused")
        if not isinstance(entry.bytes, int) or entry.bytes < 0 or not _SHA256.fullmatch(str(entry.sha256)):
            raise CorruptFile(f"the service's {MANIFEST} gives no size and SHA-256 of {name}")
    if missing := [name for name in REQUIRED if name not in manifest.files]:
        raise CorruptFile(f"the service's {MANIFEST} does not list {', '.join(missing)}")
    return manifest
