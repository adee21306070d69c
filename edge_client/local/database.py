"""SQLite files of the device: opened alike, encrypted if a key is named, their errors as ours.

EDGE_CLIENT_LOCAL_KEY_FILE names a file with a key of any text. All files of this process, its temporary ones too, are
then encrypted by SQLCipher (the extra `encrypted`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge_client.errors import StorageError
from memory3.errors import CorruptFile, InvalidInput, Memory3Error, MissingFile

KEY_FILE = "EDGE_CLIENT_LOCAL_KEY_FILE"
WAIT_S = 10.0
"""For another process that writes to the file."""


def connected(path: Path, journal: str = "WAL") -> sqlite3.Connection:
    """A connection to a file; every statement is a transaction unless one is begun.

    A file that is missing is made, readable by its owner alone, as is what SQLite keeps next to it.
    Raises StorageError (NOT_INSTALLED), MissingFile and InvalidInput for the key.
    """
    key, library = _key(), _library()
    with contextlib.suppress(OSError):  # SQLite says why it cannot be opened
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    connection: sqlite3.Connection = library.connect(
        str(path), timeout=WAIT_S, isolation_level=None, check_same_thread=False
    )
    if key:
        connection.execute("PRAGMA key = '{}'".format(key.replace("'", "''")))
    connection.execute("PRAGMA foreign_keys = ON")
    with contextlib.suppress(library.OperationalError):  # a pack may lie where nothing can be written
        connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("PRAGMA synchronous = FULL")  # what is acknowledged outlives a power cut
    return connection


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raises StorageError or CorruptFile for what the disk or SQLite says about `path`."""
    try:
        yield
    except Memory3Error:
        raise
    except (sqlite3.Error, _library().Error) as error:
        message = str(error)
        if "full" in message or "disk I/O" in message:
            raise _no_room(path, message) from error
        if "locked" in message:
            raise StorageError(f"{path} cannot be written or read now: {message}", reason="IN_USE") from error
        if "readonly" in message or "unable to open" in message:
            raise StorageError(f"{path} cannot be written or read: {message}", reason="NOT_WRITABLE") from error
        locked = f"or encrypted with another key than that of {KEY_FILE}" if "not a database" in message else ""
        raise CorruptFile(f"{path} is damaged, or no local knowledge base {locked} ({message})") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _no_room(path, str(error.strerror)) from error
        raise StorageError(f"{path} cannot be written: {error.strerror}", reason="NOT_WRITABLE") from error


def _key() -> str:
    """The key; empty where none is named."""
    if not (name := os.environ.get(KEY_FILE)):
        return ""
    try:
        key = Path(name).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise MissingFile(f"{KEY_FILE} names {name}, which cannot be read: {error.strerror}") from error
    if not key or "\0" in key:
        raise InvalidInput(f"{KEY_FILE} names {name}, which holds no key: write a long random text into it")
    return key


def _library() -> Any:
    """SQLite, or SQLCipher, which has the same interface; raises StorageError (NOT_INSTALLED)."""
    if not os.environ.get(KEY_FILE):
        return sqlite3
    try:
        from sqlcipher3 import dbapi2
    except ImportError as error:
        raise StorageError(
            f"{KEY_FILE} is set, but SQLCipher is not installed",
            reason="NOT_INSTALLED",
            help="pip install 'memory3-edge[encrypted]', or unset it",
        ) from error
    return dbapi2


def _no_room(path: Path, why: str) -> StorageError:
    return StorageError(
        f"no room for {path} ({why})",
        reason="DISK_FULL",
        help="make room and run the same command again; what was remembered before is kept",
    )
