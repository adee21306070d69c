"""A folder in which something is collected piece by piece until it is whole; only then it appears at its place.

It lies beside that place and survives Ctrl-C and kill -9, so that the next run goes on where this one stopped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from edge_client.errors import DiskFull, PullUnderWay
from memory_model.bundle import replace_folder
from memory_model.errors import InvalidInput

MARGIN_BYTES = 16 << 20
"""Left free on the disk beside what is fetched."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Staging:
    """The folder, locked for this process. A context manager."""

    def __init__(self, place: Path) -> None:
        """place: where it shall appear in the end; not there, or a folder to be replaced."""
        self.place = place.absolute()
        self.folder = self.place.parent / f".{self.place.name}.pull"
        self._lock: int | None = None

    def __enter__(self) -> Staging:
        with self.room():
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError, PermissionError) as error:
                raise InvalidInput(
                    f"{self.place} cannot be made: {error.strerror}: choose another place"
                ) from error
            self._lock = self._locked()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):  # not empty: what came is kept; not there: it was installed
                self.folder.rmdir()
            self._lock_file.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    @property
    def _lock_file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.lock")

    def _locked(self) -> int:
        """The lock file, opened and locked; raises PullUnderWay. Who had it before may have removed it meanwhile."""
        while True:
            lock = os.open(self._lock_file, os.O_CREAT | os.O_RDWR, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(lock)
                raise PullUnderWay(
                    f"another process is fetching to {self.place}: wait for it, or choose another place"
                ) from error
            with contextlib.suppress(FileNotFoundError):  # removed, also between two looks at it
                if os.path.samestat(os.fstat(lock), self._lock_file.stat()):
                    self.folder.mkdir(exist_ok=True)
                    return lock
            os.close(lock)

    def require_room(self, needed_bytes: int) -> None:
        """Raise DiskFull unless so many more bytes fit."""
        free = shutil.disk_usage(self.folder).free
        if needed_bytes + MARGIN_BYTES > free:
            raise DiskFull(
                f"{self.place} needs {needed_bytes / 1e6:.0f} MB more, {free / 1e6:.0f} MB are free:"
                " make room or choose another place with --out; what was fetched is kept"
            )

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """Turns the system's errors for a full disk into DiskFull."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise DiskFull(
                f"no room for {self.place} ({error.strerror}): make room and run the same command again;"
                " what was fetched is kept"
            ) from error

    def install(self) -> None:
        """Everything in the folder appears at its place, in one step; an older folder there is replaced."""
        with self.room():
            for path in self.folder.iterdir():
                _flush(path)
        replace_folder(self.folder, self.place)

    def clear(self) -> None:
        """Forget what was collected."""
        for path in self.folder.iterdir():
            path.unlink()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
