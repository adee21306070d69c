"""The address of a store: which engine, where, as whom; its options; and the lock of one that is a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from memory3.errors import InvalidInput
from memory_service.errors import StoreUnavailable

_EXPECTED = (
    "expected chdb:///absolute/path or file:///absolute/path (three slashes),"
    " clickhouse[s]://user@host:port/database or myscale[s]://user@host:port/database"
)
_FOLDERS = ("chdb", "file")
_SERVERS = {"clickhouse": False, "clickhouses": True, "myscale": False, "myscales": True}
_PORTS = {False: 8123, True: 8443}
DEFAULT_DATABASE = "memory"
_LOCK_FILE = "memory-service.lock"


@dataclass(frozen=True)
class StoreAddress:
    """A parsed address. engine: "chdb", "file", "clickhouse" or "myscale"; `path` belongs to the first two.

    The password does not show in the representation.
    """

    engine: str
    path: Path = field(default_factory=Path)
    host: str = ""
    port: int = 0
    secure: bool = False
    user: str = "default"
    password: str = field(default="", repr=False)
    database: str = DEFAULT_DATABASE

    def __str__(self) -> str:
        """The address as it may be logged: without the password."""
        if not self.host:
            return f"{self.engine}://{self.path}"
        scheme = self.engine + ("s" if self.secure else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{self.user}@{host}:{self.port}/{self.database}"


@dataclass(frozen=True)
class StoreOptions:
    """What an address does not say; all of it is for engines.

    read_connections: for searches with filters, and as many for others. password: instead of the address's own.
    cluster: name of a cluster in the server's configuration; tables are then replicated and distributed over it.
    max_threads: of one search, 0 for 1 embedded and 4 on a server. insert_quorum: replicas of a cluster that have an
    insert before it is acknowledged, 'auto' for most of them. sweep_after_s: age at which rows of replaced, deleted and
    unfinished documents are removed; a write that takes longer than half of it fails. retry_s: interval at
    which knowledge bases that could not be opened are opened again. vector_index, search_parameters: of MyScale, see
    `clickhouse.myscale`; a table keeps the type of index that it was made with.
    """

    read_connections: int = 2
    password: str = field(default="", repr=False)
    cluster: str = ""
    timeout_s: float = 30.0
    max_threads: int = 0
    insert_quorum: str = "auto"
    sweep_after_s: float = 3600.0
    retry_s: float = 5.0
    vector_index: str = "SCANN"
    search_parameters: str = ""


def parse_address(url: str) -> StoreAddress:
    """The address of a store; raises InvalidInput for anything else. The message never holds a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput(f"store address: {_EXPECTED}") from None
    shown = url if "@" not in url else f"{parts.scheme}://…@{url.rpartition('@')[2]}"
    if parts.query or parts.fragment:
        raise InvalidInput(f"store address {shown!r} has options behind it: give them as settings")
    if parts.scheme in _FOLDERS and not parts.netloc and parts.path.startswith("/") and parts.path != "/":
        return StoreAddress(parts.scheme, path=Path(unquote(parts.path)))
    if parts.scheme in _SERVERS and parts.hostname:
        secure = _SERVERS[parts.scheme]
        database = unquote(parts.path.strip("/")) or DEFAULT_DATABASE
        if not database.replace("_", "").isalnum() or not database.isascii():
            raise InvalidInput(f"store address {shown!r}: a database has letters, digits and '_' in its name")
        return StoreAddress(
            parts.scheme.rstrip("s") if secure else parts.scheme,
            host=parts.hostname,
            port=port or _PORTS[secure],
            secure=secure,
            user=unquote(parts.username or "default"),
            password=unquote(parts.password or ""),
            database=database,
        )
    raise InvalidInput(f"store address {shown!r}: {_EXPECTED}")


class FolderLock:
    """One process a folder, from construction to `release` or the process's death.

    Raises StoreUnavailable where another process holds it or the folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._file = (path / _LOCK_FILE).open("w")
        except OSError as error:
            raise StoreUnavailable(f"the store cannot use {path}: {error.strerror}; name another folder") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            message = f"the store cannot lock {path} ({error.strerror}): name a folder of a file system that has locks"
            if isinstance(error, BlockingIOError):
                message = (
                    f"the store at {path} is in use by another process: stop it, or send your command to it with"
                    " --address"
                )
            raise StoreUnavailable(message) from error

    def require(self) -> None:
        """Raises StoreUnavailable when the folder is no longer there, or was replaced by another one."""
        same = False
        with contextlib.suppress(OSError):
            same = os.path.samestat(os.stat(self._path / _LOCK_FILE), os.fstat(self._file.fileno()))
        if not same:
            raise StoreUnavailable(f"the folder {self._path} is gone, or another lies there: is its disk mounted?")

    def release(self) -> None:
        """Lets another process in."""
        self._file.close()
