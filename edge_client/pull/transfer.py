"""What both pulls share: a locked staging folder, streams that are resumed, room on the disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from edge_client.errors import RetrievalError, StorageError
from edge_client.local.database import disk_errors
from edge_client.wire.channel import named_errors
from memory3.channel import ChannelSettings

MARGIN_BYTES = 16 << 20
"""Left free on the disk next to what is fetched."""
CALL_S = 60.0
"""Deadline of one stream. A longer file takes several, each from where the last one stopped."""
ATTEMPTS = 5
"""Streams in a row that bring nothing before a pull gives up."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
T = TypeVar("T")

Progress = Callable[[int, int, str], None]
"""Called often with bytes done, bytes in all, and what is being fetched; what it raises ends the pull."""


def staging_of(target: Path) -> Path:
    """The folder that collects what is fetched for `target`; it stays while something is missing."""
    return target.with_name(f".{target.name}.pull")


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """That folder, locked for this process. Raises StorageError (PULL_UNDER_WAY, and those of `disk_errors`)."""
    folder = staging_of(target)
    with disk_errors(target):
        lock = _locked(folder, target)
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):  # not empty: what came is kept; not there: it was installed
                folder.rmdir()
            os.close(lock)


def _locked(folder: Path, target: Path) -> int:
    """The staging folder of `target`, made, opened and locked. Another process may remove or install it meanwhile."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), folder.stat()):
                    return lock
                os.close(lock)
            except BlockingIOError as error:
                os.close(lock)
                message = f"another process is fetching to {target}: wait for it, or choose another folder"
                raise StorageError(message, reason="PULL_UNDER_WAY") from error


def require_room(folder: Path, needed_bytes: int) -> None:
    """Raise StorageError (DISK_FULL) unless so many more bytes fit."""
    free = shutil.disk_usage(folder).free
    if needed_bytes + MARGIN_BYTES > free:
        raise StorageError(
            f"{folder.parent} needs {needed_bytes / 1e6:.0f} MB more, {free / 1e6:.0f} MB are free:"
            " make room or choose another folder; what was fetched is kept",
            reason="DISK_FULL",
        )


def stream(channel: ChannelSettings, method: Any, request: Any) -> Iterator[Any]:
    """The messages of a stream, which ends with the iterator; raises RetrievalError."""
    # In a thread, which Ctrl-C does not reach: interrupted while it begins a call, gRPC never closes the channel.
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(method, request, timeout=CALL_S, metadata=channel.metadata).result()
    try:
        with named_errors(channel.address, CALL_S):
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


def ended(what: str, done: int, of: int) -> RetrievalError:
    """The error of a stream that ended too early, which is worth another one."""
    return RetrievalError(f"{what} ended after {done} of {of}", reason="UNREACHABLE", unavailable=True)
