"""SQLite files of the device: opened alike, encrypted if a key is named, their errors as ours.

EDGE_CLIENT_LOCAL_KEY_FILE names a file with a key of any text. All files of this process, its temporary ones too, are
then encrypted by SQLCipher (the extra `encrypted`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
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
    Raises StorageError (NOT_INSTALLED, and those of `disk_errors`), CorruptFile, and MissingFile and InvalidInput for
    the key.
    """
    with disk_errors(path):
        return _connected(path, journal)


def _connected(path: Path, journal: str = "") -> sqlite3.Connection:
    """journal: empty leaves it as it is."""
    key, library = _key(), _library()
    with contextlib.suppress(OSError):  # SQLite says why it cannot be opened
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    unchanging = _unchanging(path)
    connection: sqlite3.Connection = library.connect(
        f"{path.absolute().as_uri()}?immutable=1" if unchanging else str(path),
        timeout=WAIT_S,
        isolation_level=None,
        check_same_thread=False,
        uri=unchanging,
    )
    try:
        if key:
            connection.execute("PRAGMA key = '{}'".format(key.replace("'", "''")))
        connection.execute("PRAGMA foreign_keys = ON")
        if journal:
            with contextlib.suppress(library.OperationalError):  # a pack may lie where nothing can be written
                connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("PRAGMA synchronous = FULL")  # what is acknowledged outlives a power cut
    except BaseException:
        connection.close()
        raise
    return connection


def _unchanging(path: Path) -> bool:
    """Whether a file is on a read-only file system and has no journal: SQLite must not try to make one there."""
    if os.name == "nt" or path.with_name(f"{path.name}-wal").exists():
        return False
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raises StorageError for what the disk or SQLite says about `path`, CorruptFile only for a file that is damaged.

    All else that SQLite says is of the machine and passes, as is what it calls damage where a check finds none.
    """
    try:
        yield
    except Memory3Error:
        raise
    except (sqlite3.Error, _library().Error) as error:
        message = str(error)
        if any(words in message for words in _DAMAGED):
            _require_damage(path, message)
            other = f", no file of edge-client, or encrypted with another key than that of {KEY_FILE}"
            raise CorruptFile(f"{path} is damaged{other if 'not a database' in message else ''} ({message})") from error
        if "full" in message or ("disk I/O" in message and not _room(path)):
            raise _no_room(path, message) from error
        if "locked" in message:
            raise StorageError(f"{path} cannot be written or read now: {message}", reason="IN_USE") from error
        if "disk I/O" in message:
            message += ": the disk fails, or a quota or limit for files is reached"
        raise _unavailable(path, message) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _no_room(path, str(error.strerror)) from error
        raise _unavailable(path, str(error.strerror or error)) from error


_DAMAGED = ("malformed", "not a database", "decode to UTF-8", "no such table", "no such column")
"""Of what SQLite says about a file whose content is not what was written, or another program's."""
_READ_BYTES = 1 << 20


def _require_damage(path: Path, message: str) -> None:
    """Raises StorageError where the file can be read and a check finds it whole: so SQLite reports failed reads."""
    if "malformed" not in message and "not a database" not in message:
        return  # what was read well has another content
    with disk_errors(path), path.open("rb") as file:
        while file.read(_READ_BYTES):
            pass
    with contextlib.suppress(sqlite3.Error, _library().Error), contextlib.closing(_connected(path)) as checking:
        if checking.execute("PRAGMA quick_check(1)").fetchone() == ("ok",):
            raise _unavailable(path, f"the disk failed, a check finds the file whole: {message}")


def merge_journal(path: Path) -> None:
    """Write all of a file's journal into the file.

    Raises StorageError (IN_USE while somebody reads or writes it, and those of `disk_errors`), CorruptFile.
    """
    with disk_errors(path), contextlib.closing(_connected(path)) as connection:
        (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StorageError(f"{path} is being read or written", reason="IN_USE", help="run the same command again")


def _key() -> str:
    """The key; empty where none is named."""
    if not (name := os.environ.get(KEY_FILE)):
        return ""
    try:
        key = Path(name).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise MissingFile(f"{KEY_FILE} names {name}, which cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{KEY_FILE} names {name}, which is no text: write a long random text into it") from error
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


def _room(path: Path) -> bool:
    """Whether the disk has some, as far as it can be told."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(path.parent).free > _LITTLE_BYTES
    return True


_LITTLE_BYTES = 1 << 20


def _unavailable(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} cannot be written or read: {why}",
        reason="NOT_WRITABLE",
        help="nothing that was stored is lost; run the same command again once that is mended",
    )


def _no_room(path: Path, why: str) -> StorageError:
    return StorageError(
        f"no room for {path} ({why})",
        reason="DISK_FULL",
        help="make room and run the same command again; what was remembered before is kept",
    )
