"""Fetches the edge bundle from the service: resumable, every file checked against the manifest, installed whole.

manifest.json -> names and sizes checked, room checked -> file by file from its offset -> SHA-256 -> install
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from edge_client.cancellation import Cancellation
from edge_client.errors import (
    ServiceUnavailable,
)
from edge_client.interruptible import interruptible
from edge_client.pull.calls import CALL_S, Calls
from edge_client.pull.staging import Staging
from edge_client.wire.channel import ChannelSettings, open_channel
from memory_model.bundle import MANIFEST, REQUIRED, Bundle, FileEntry, Manifest, check_place
from memory_model.digest import BLOCK_BYTES, file_sha256
from memory_model.errors import CorruptFile, Memory3Error
from protos.memory.v1 import models_pb2, models_pb2_grpc

LARGEST_MANIFEST_BYTES = 4 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Progress(Protocol):
    """Told how far it is: bytes of all, and what is being fetched."""

    def __call__(self, done_bytes: int, total_bytes: int, what: str) -> None:
        """Called often, by a thread that is not the caller's; what it raises ends the pull."""


def silent(done_bytes: int, total_bytes: int, what: str) -> None:
    """A Progress that tells nobody."""


def pull_bundle(
    channel: ChannelSettings, place: Path, *, progress: Progress = silent, call_s: float = CALL_S
) -> Bundle:
    """Fetch the service's bundle to the folder `place`; an older bundle there is replaced when the new one is whole.

    Interrupted, by Ctrl-C or whatever, the next call goes on where it stopped. Raises RetrievalErrors of the service,
    DiskFull, PullUnderWay, InvalidInput for a place that holds something else, CorruptFile for a manifest that
    is none or a file that does not become what the manifest says.
    """
    check_place(place)

    def fetch(cancellation: Cancellation) -> Bundle:
        with Staging(place) as staging, open_channel(channel) as opened:
            calls = Calls(channel, call_s, cancellation)
            return _BundlePull(staging, models_pb2_grpc.ModelsStub(opened), calls, progress).run()

    return interruptible(fetch)


class _BundlePull:
    """One run. A file is NAME.part while it comes and NAME once its SHA-256 was found right."""

    def __init__(
        self, staging: Staging, stub: models_pb2_grpc.ModelsStub, calls: Calls, progress: Progress
    ) -> None:
        self._staging, self._folder = staging, staging.folder
        self._stub, self._calls, self._progress = stub, calls, progress
        self._done_bytes = self._total_bytes = 0

    def run(self) -> Bundle:
        raw = self._manifest()
        manifest = checked_manifest(raw)
        self._total_bytes = sum(entry.bytes for entry in manifest.files.values())
        self._keep_only_parts_of(manifest, raw)
        for name, entry in manifest.files.items():
            self._take_from_older(name, entry)
        self._staging.require_room(
            sum(max(entry.bytes - self._size(name), 0) for name, entry in manifest.files.items())
        )
        for name, entry in manifest.files.items():
            self._complete(name, entry)
        bundle = Bundle(self._folder, manifest)
        bundle.verify()
        self._staging.install()
        return Bundle(self._staging.place, manifest)

    def _manifest(self) -> bytes:
        pieces: list[bytes] = []

        def fetch() -> bytes:
            pieces.clear()
            for piece in self._stream(MANIFEST, 0):
                pieces.append(piece.data)
                if piece.file_bytes > LARGEST_MANIFEST_BYTES:
                    raise CorruptFile(f"the service's {MANIFEST} has {piece.file_bytes} bytes: it is none")
                if sum(map(len, pieces)) >= piece.file_bytes:
                    break
            return b"".join(pieces)

        return self._calls.persistently(fetch, lambda: 0)

    def _keep_only_parts_of(self, manifest: Manifest, raw: bytes) -> None:
        """Of an earlier run, keep what the manifest still wants; a part of another version of a file is of no use."""
        try:
            earlier = Manifest.from_json((self._folder / MANIFEST).read_text(encoding="utf-8")).files
        except (OSError, ValueError, Memory3Error):
            earlier = {}
        wanted = {name for name, entry in manifest.files.items() if earlier.get(name) == entry}
        for path in self._folder.iterdir():
            if path.name.removesuffix(".part") not in wanted:
                path.unlink()
        with self._staging.room():
            (self._folder / MANIFEST).write_bytes(raw)

    def _take_from_older(self, name: str, entry: FileEntry) -> None:
        """What the bundle that is at the place has already need not come again."""
        older, here = self._staging.place / name, self._folder / name
        if self._size(name) == 0 and older.is_file() and older.stat().st_size == entry.bytes:
            with self._staging.room():
                try:
                    os.link(older, here)
                except OSError:
                    shutil.copyfile(older, here)

    def _size(self, name: str) -> int:
        for path in (self._folder / name, self._folder / f"{name}.part"):
            if path.is_file():
                return path.stat().st_size
        return 0

    def _complete(self, name: str, entry: FileEntry) -> None:
        """The file whole and right; one that does not become so is fetched anew, once."""
        whole, part = self._folder / name, self._folder / f"{name}.part"
        if whole.is_file():
            if whole.stat().st_size == entry.bytes and file_sha256(whole) == entry.sha256:
                self._done(entry.bytes, name)
                return
            whole.unlink()
        for _ in range(2):
            before = self._done_bytes
            digest = self._calls.persistently(
                lambda: self._fetch(name, entry, part), lambda: self._size(name)
            )
            if digest == entry.sha256:
                os.replace(part, whole)
                return
            part.unlink()
            self._done(before - self._done_bytes, name)
        raise CorruptFile(
            f"{name} of the service at {self._calls.channel.address} is not what its manifest says (SHA-256 differs):"
            " its operator exports the bundle again"
        )

    def _fetch(self, name: str, entry: FileEntry, part: Path) -> str:
        """Append what is missing; the SHA-256 of the whole."""
        digest = hashlib.sha256()
        with self._staging.room(), part.open("ab+") as file:
            if file.tell() > entry.bytes:
                file.truncate(0)
            file.seek(0)
            base = self._done_bytes
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
            offset = file.tell()
            self._done(offset, name)
            try:
                for piece in self._stream(name, offset) if offset < entry.bytes else ():
                    data = piece.data
                    if piece.offset != offset or piece.file_bytes != entry.bytes:
                        raise CorruptFile(
                            f"{name} changed on the service while it was fetched: run the same command again"
                        )
                    file.write(data)
                    digest.update(data)
                    offset += len(data)
                    self._done(len(data), name)
                if offset < entry.bytes:
                    raise ServiceUnavailable(f"{name} ended after {offset} of {entry.bytes} bytes")
                file.flush()
            except BaseException:
                self._done(base - self._done_bytes, name)  # counted again when it goes on
                raise
        return digest.hexdigest()

    def _stream(self, name: str, offset: int) -> Iterator[models_pb2.FetchBundleResponse]:
        call = self._stub.FetchBundle(
            models_pb2.FetchBundleRequest(file=name, offset=offset), timeout=self._calls.call_s,
            metadata=self._calls.channel.metadata,
        )  # fmt: skip
        return self._calls.follow(call)

    def _done(self, more_bytes: int, name: str) -> None:
        self._done_bytes += more_bytes
        self._progress(self._done_bytes, self._total_bytes, name)


def checked_manifest(raw: bytes) -> Manifest:
    """A manifest whose files may be written: plain names, sizes that can be; raises CorruptFile."""
    try:
        manifest = Manifest.from_json(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CorruptFile(f"the service's {MANIFEST} is not text") from error
    for name, entry in manifest.files.items():
        if not _PLAIN_NAME.fullmatch(name) or name == MANIFEST or name.endswith(".part"):
            raise CorruptFile(
                f"the service's {MANIFEST} lists {name[:200]!r}, which is no plain file name: refused"
            )
        if not isinstance(entry.bytes, int) or entry.bytes < 0 or not _SHA256.fullmatch(str(entry.sha256)):
            raise CorruptFile(f"the service's {MANIFEST} says no size and SHA-256 of {name}")
    if missing := [name for name in REQUIRED if name not in manifest.files]:
        raise CorruptFile(f"the service's {MANIFEST} does not list {', '.join(missing)}")
    return manifest
