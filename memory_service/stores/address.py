"""The address of a store: which engine, where, as whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from memory_model.errors import InvalidInput

_EXPECTED = (
    "expected chdb:///absolute/path or file:///absolute/path (three slashes),"
    " clickhouse[s]://user@host:port/database or myscale[s]://user@host:port/database"
)
_FOLDERS = ("chdb", "file")
_SERVERS = {"clickhouse": False, "clickhouses": True, "myscale": False, "myscales": True}
_PORTS = {False: 8123, True: 8443}
DEFAULT_DATABASE = "memory"


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
            parts.scheme.rstrip("s") if secure else parts.scheme, host=parts.hostname, port=port or _PORTS[secure],
            secure=secure, user=unquote(parts.username or "default"), password=unquote(parts.password or ""),
            database=database,
        )  # fmt: skip
    raise InvalidInput(f"store address {shown!r}: {_EXPECTED}")
