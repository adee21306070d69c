"""What an error of the disk or of SQLite means for a store, and folders that survive a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from memory3.errors import Memory3Error
from memory_service.errors import KnowledgeBaseDamaged, StoreFull, StoreUnavailable


def is_damage(error: Exception) -> bool:
    """Whether an error says that what was read is not what was written; all others are of the machine, and pass."""
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", None) or ""
        return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or "decode to UTF-8" in str(error)
    # UnicodeDecodeError is a ValueError. Values of another type than the tables have make the latter two.
    return isinstance(error, (ValueError, TypeError)) or getattr(error, "errno", None) == errno.EUCLEAN


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Raises StoreFull, KnowledgeBaseDamaged or StoreUnavailable for what the disk or SQLite says while `doing`."""
    try:
        yield
    except Memory3Error:
        raise
    except (OSError, sqlite3.Error) as error:
        name, code = getattr(error, "sqlite_errorname", None) or "", getattr(error, "errno", None)
        if name.startswith("SQLITE_FULL") or code in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"the disk is full while {doing}: free space, nothing stored before is lost") from error
        if is_damage(error):
            raise KnowledgeBaseDamaged(f"the store's files are damaged while {doing} ({error})") from error
        raise StoreUnavailable(f"the store failed while {doing}: {error}") from error


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
