"""One process a folder: a lock that the operating system lets go of when the process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from memory_service.errors import StoreUnavailable

_LOCK_FILE = "memory-service.lock"


class FolderLock:
    """Held from construction to `release`. Raises StoreUnavailable where another process holds it or the folder
    cannot be used.
    """  # noqa: D205

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._file = (path / _LOCK_FILE).open("w")
        except OSError as error:
            raise StoreUnavailable(
                f"the store cannot use {path}: {error.strerror}; name a folder that can be written"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise StoreUnavailable(
                f"the store at {path} is in use by another process: stop it, or send your command to it with --address"
            ) from error

    def require(self) -> None:
        """Raises StoreUnavailable when the folder is no longer there, or another one lies in its place."""
        same = False
        with contextlib.suppress(OSError):
            same = os.path.samestat(os.stat(self._path / _LOCK_FILE), os.fstat(self._file.fileno()))
        if not same:
            raise StoreUnavailable(f"the folder {self._path} is gone, or another lies there: is its disk mounted?")

    def release(self) -> None:
        """Lets another process in."""
        self._file.close()
