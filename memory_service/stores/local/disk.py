"""Files that survive: errors of the disk as ours, files replaced whole, files mapped for reading."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import google_crc32c

from memory_model.errors import Memory3Error
from memory_service.errors import KnowledgeBaseDamaged, StoreFull, StoreUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_MESSAGE = "free space, nothing stored before is lost"


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Raises StoreFull, KnowledgeBaseDamaged or StoreUnavailable for what the disk or sqlite says; `doing` says what
    was tried.
    """  # noqa: D205
    try:
        yield
    except Memory3Error:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFull(f"the store's disk is full while {doing}: {_FULL_MESSAGE}") from error
        if error.errno in (errno.EIO, errno.ENOENT, errno.EUCLEAN):
            raise KnowledgeBaseDamaged(
                f"the store's files are damaged while {doing}: {error}: run `memory-service doctor`"
            ) from error
        raise StoreUnavailable(f"the store failed while {doing}: {error}") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", "") or ""
        if code.startswith("SQLITE_FULL") or "disk is full" in str(error):
            raise StoreFull(f"the store's disk is full while {doing}: {_FULL_MESSAGE}") from error
        if isinstance(error, sqlite3.OperationalError) and not code.startswith("SQLITE_IOERR"):
            raise StoreUnavailable(f"the store failed while {doing}: {error}") from error
        raise KnowledgeBaseDamaged(
            f"the store's documents are damaged while {doing} ({error}): run `memory-service doctor`"
        ) from error


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file so that after a crash it is the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def crc_of(path: Path) -> int:
    """CRC-32C of a whole file."""
    crc = google_crc32c.Checksum()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 22):
            crc.update(piece)
    return int.from_bytes(crc.digest(), "big")


class MappedFile:
    """A file that is written with `write` and read through memory. Readers may be many, the writer is one.

    Written with pwrite and not through the map: a full disk is then an error of the call, not a signal.
    """

    def __init__(self, path: Path, *, create: bool = False, writable: bool = True) -> None:
        self.path = path
        flags = os.O_RDWR if writable else os.O_RDONLY
        flags |= os.O_CLOEXEC | ((os.O_CREAT | os.O_TRUNC) if create else 0)
        self._descriptor = os.open(path, flags, 0o644)
        self._map: mmap.mmap | None = None
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """The file's length now."""
        # A seventh of what fstat takes; nothing reads or writes at the descriptor's own place.
        return os.lseek(self._descriptor, 0, os.SEEK_END)

    @property
    def disk_bytes(self) -> int:
        """What it takes on the disk; holes take nothing."""
        return os.fstat(self._descriptor).st_blocks * 512

    def write(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        """Writes the parts one after the other from `offset` on."""
        written = os.pwritev(self._descriptor, parts, offset)
        if written != sum(len(part) for part in parts):  # a disk that fills up in the middle writes less
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def extend_to(self, size_bytes: int) -> None:
        """Makes the file at least this long; what is new reads as zeros."""
        if self.size_bytes < size_bytes:
            os.truncate(self._descriptor, size_bytes)

    def cut_to(self, size_bytes: int) -> None:
        """Drops what lies behind, which nobody may read."""
        if self.size_bytes > size_bytes:
            os.truncate(self._descriptor, size_bytes)

    def sync(self) -> None:
        """What was written is on the disk when this returns."""
        os.fdatasync(self._descriptor)

    def check_reaches(self, end: int) -> int:
        """The file's length, at least `end`; raises KnowledgeBaseDamaged where it is shorter.

        Asked for every time that something is read: to touch a page that is gone would end the process.
        """
        size = self.size_bytes
        if size < end:
            raise KnowledgeBaseDamaged(
                f"{self.path.name} has {size} bytes, {end} were written: run `memory-service doctor`"
            )
        return size

    def view(self, end: int) -> memoryview:
        """The file from its beginning to at least `end`; raises KnowledgeBaseDamaged where it is shorter."""
        size = self.check_reaches(end)
        current = self._map
        if current is None or len(current) < end:
            with self._lock:
                current = self._map
                if current is None or len(current) < end:
                    # The one before lives on as long as somebody reads in it.
                    current = self._map = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ)
        return memoryview(current)

    def close(self) -> None:
        """Lets go of the file; views that are still read stay good."""
        if self._descriptor >= 0:
            self._map = None
            os.close(self._descriptor)
            self._descriptor = -1
