"""Fetches the edge bundle from the service: resumable, every file checked against the manifest, installed whole.

manifest.json -> names and sizes checked, room checked -> file by file from its offset -> SHA-256 -> install

`Staging`, `messages` and `resumed` are what a memory pack is fetched with too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from edge_client.errors import RetrievalError, StorageError
from edge_client.wire.channel import ChannelSettings, named_errors, open_channel
from memory_model.bundle import MANIFEST, REQUIRED, Bundle, FileEntry, Manifest, check_place, replace_folder
from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile, InvalidInput
from protos.memory.v1 import models_pb2, models_pb2_grpc

MARGIN_BYTES = 16 << 20
"""Left free on the disk beside what is fetched."""
CALL_S = 60.0
"""Deadline of one stream. A longer file takes several, each from where the last one stopped."""
ATTEMPTS = 5
"""Streams in a row that bring nothing before a pull gives up."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
LARGEST_MANIFEST_BYTES = 4 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
T = TypeVar("T")

Progress = Callable[[int, int, str], None]
"""Called often with bytes done, bytes in all, and what is being fetched; what it raises ends the pull."""


def silent(done_bytes: int, total_bytes: int, what: str) -> None:
    """A Progress that shows nothing."""


def messages(call: Any, address: str, call_s: float) -> Iterator[Any]:
    """The messages of a stream, which ends with the iterator; raises RetrievalError."""
    try:
        with named_errors(address, call_s):
            yield from call
    finally:
        call.cancel()


def resumed(step: Callable[[], T], received: Callable[[], int]) -> T:
    """The step's result; a step whose stream broke is repeated, for as long as that brings it further.

    received: grows when a step brought something. Raises the RetrievalError of the last of ATTEMPTS vain steps.
    """
    vain, before = 0, received()
    while True:
        try:
            return step()
        except RetrievalError as error:
            now = received()
            vain, before = (1 if now > before else vain + 1), now
            broke = error.unavailable or error.reason in ("SERVICE_FAILED", "INTERNAL")
            if not broke or error.reason == "CERTIFICATE" or vain >= ATTEMPTS:
                raise
            time.sleep(min(FIRST_PAUSE_S * 2 ** (vain - 1), LONGEST_PAUSE_S))


class Staging:
    """The folder, locked for this process. A context manager.

    place: where it appears in the end; not there yet, or a folder to be replaced.
    """

    def __init__(self, place: Path) -> None:
        self.place = place.absolute()
        self.folder = self.place.parent / f".{self.place.name}.pull"
        self._lock = -1

    def __enter__(self) -> Staging:
        """Raises StorageError (PULL_UNDER_WAY, DISK_FULL), InvalidInput for a place that cannot be made."""
        with self.room():
            try:
                self._lock = self._locked()
            except (FileExistsError, NotADirectoryError, PermissionError) as error:
                message = f"{self.place} cannot be made: {error.strerror}: choose another place"
                raise InvalidInput(message) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # not empty: what came is kept; not there: it was installed
            self.folder.rmdir()
        os.close(self._lock)

    def _locked(self) -> int:
        """The folder, made, opened and locked. Another process may remove or install it meanwhile."""
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                lock = os.open(self.folder, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.fstat(lock), self.folder.stat()):
                        return lock
                    os.close(lock)
                except BlockingIOError as error:
                    os.close(lock)
                    message = f"another process is fetching to {self.place}: wait for it, or choose another place"
                    raise StorageError(message, reason="PULL_UNDER_WAY") from error

    def require_room(self, needed_bytes: int) -> None:
        """Raise StorageError (DISK_FULL) unless so many more bytes fit."""
        free = shutil.disk_usage(self.folder).free
        if needed_bytes + MARGIN_BYTES > free:
            raise StorageError(
                f"{self.place} needs {needed_bytes / 1e6:.0f} MB more, {free / 1e6:.0f} MB are free:"
                " make room or choose another place with --out; what was fetched is kept",
                reason="DISK_FULL",
            )

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """Raises the system's errors for a full disk as StorageError (DISK_FULL)."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            message = f"no room for {self.place} ({error.strerror}): make room and run the same command again"
            raise StorageError(f"{message}; what was fetched is kept", reason="DISK_FULL") from error

    def install(self) -> None:
        """Everything in the folder appears at its place, in one step; an older folder there is replaced."""
        with self.room():
            for path in self.folder.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        replace_folder(self.folder, self.place)

    def clear(self) -> None:
        """Remove what was collected."""
        for path in self.folder.iterdir():
            path.unlink()


def pull_bundle(
    channel: ChannelSettings, place: Path, *, progress: Progress = silent, call_s: float = CALL_S
) -> Bundle:
    """Fetch the service's bundle to the folder `place`; an older bundle there is replaced when the new one is whole.

    Interrupted, by Ctrl-C or whatever, the next call goes on where it stopped; equal files of the older bundle do not
    come again. call_s: deadline of one stream. Raises RetrievalError, StorageError, InvalidInput for a place that holds
    something else, CorruptFile for a manifest that is none or a file that does not become what the manifest says.
    """
    check_place(place)
    with Staging(place) as staging, open_channel(channel) as opened:
        return _BundlePull(staging, channel, models_pb2_grpc.ModelsStub(opened), progress, call_s).run()


class _BundlePull:
    """One run. While it comes, a file's name ends with its SHA-256, so what a run left is known by its name."""

    def __init__(
        self, staging: Staging, channel: ChannelSettings, stub: Any, progress: Progress, call_s: float
    ) -> None:
        self._staging, self._channel, self._stub = staging, channel, stub
        self._progress, self._call_s = progress, call_s
        self._done: dict[str, int] = {}  # bytes of every file
        self._total_bytes = 0

    def run(self) -> Bundle:
        raw = resumed(self._manifest, lambda: 0)
        manifest, place = checked_manifest(raw), self._staging.place
        self._total_bytes = sum(entry.bytes for entry in manifest.files.values())
        files = {
            name: (entry, self._staging.folder / f"{name}.{entry.sha256}") for name, entry in manifest.files.items()
        }
        with self._staging.room():
            for path in set(self._staging.folder.iterdir()) - {part for _, part in files.values()}:
                path.unlink()
            for name, (entry, part) in files.items():
                older = place / name
                if not _size(part) and older.is_file() and older.stat().st_size == entry.bytes:
                    part.unlink(missing_ok=True)
                    try:
                        os.link(older, part)
                    except OSError:
                        shutil.copyfile(older, part)
        self._staging.require_room(sum(max(entry.bytes - _size(part), 0) for entry, part in files.values()))
        for name, (entry, part) in files.items():
            self._complete(name, entry, part)
        with self._staging.room():
            for name, (_, part) in files.items():
                part.rename(self._staging.folder / name)
            (self._staging.folder / MANIFEST).write_bytes(raw)
        self._staging.install()
        return Bundle(place, manifest)

    def _manifest(self) -> bytes:
        raw = b""
        for piece in self._stream(MANIFEST, 0):
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
        with self._staging.room(), part.open("ab") as file:
            offset = file.tell()
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


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def checked_manifest(raw: bytes) -> Manifest:
    """A manifest whose files may be written: plain names, sizes that can be; raises CorruptFile."""
    try:
        manifest = Manifest.from_json(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CorruptFile(f"the service's {MANIFEST} is not text") from error
    for name, entry in manifest.files.items():
        if not _PLAIN_NAME.fullmatch(name) or name == MANIFEST:
            raise CorruptFile(f"the service's {MANIFEST} lists {name[:200]!r}, which is no plain file name: refused")
        if not isinstance(entry.bytes, int) or entry.bytes < 0 or not _SHA256.fullmatch(str(entry.sha256)):
            raise CorruptFile(f"the service's {MANIFEST} gives no size and SHA-256 of {name}")
    if missing := [name for name in REQUIRED if name not in manifest.files]:
        raise CorruptFile(f"the service's {MANIFEST} does not list {', '.join(missing)}")
    return manifest
