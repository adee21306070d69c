"""What is fetched is collected in a folder beside its place until it is whole, over as many streams as it takes.

The folder survives Ctrl-C and kill -9, so that the next run goes on where this one stopped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from edge_client.errors import RetrievalError, StorageError
from edge_client.wire.errors import named_errors
from memory_model.bundle import replace_folder
from memory_model.errors import InvalidInput

MARGIN_BYTES = 16 << 20
"""Left free on the disk beside what is fetched."""
CALL_S = 60.0
"""Deadline of one stream. A longer file takes several, each from where the last one stopped."""
ATTEMPTS = 5
"""Streams in a row that bring nothing before a pull gives up."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
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
