"""Handles on one ClickHouse engine: one for writing, some for reading, and its errors as ours."""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from http.client import RemoteDisconnected
from typing import Any

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError
from clickhouse_connect.driver.httputil import check_env_proxy, get_pool_manager
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

from memory_model.errors import Memory3Error
from memory_service.errors import KnowledgeBaseDamaged, StoreFull, StoreUnavailable
from memory_service.stores import StoreOptions
from memory_service.stores.address import StoreAddress
from memory_service.stores.clickhouse.dialect import Dialect
from memory_service.stores.folder_lock import FolderLock

Row = Sequence[Any]

# What the engine says of bytes on disk that are not those it wrote (its error codes by name).
_DAMAGE_CODES = {
    6: "CANNOT_PARSE_TEXT", 23: "CANNOT_READ_FROM_ISTREAM", 27: "CANNOT_PARSE_INPUT", 33: "CANNOT_READ_ALL_DATA",
    40: "CHECKSUM_DOESNT_MATCH", 76: "CANNOT_OPEN_FILE", 79: "INCORRECT_FILE_NAME", 107: "FILE_DOESNT_EXIST",
    117: "INCORRECT_DATA", 228: "SIZES_OF_FILES_MISMATCH", 246: "CORRUPTED_DATA", 271: "CANNOT_DECOMPRESS",
    432: "UNKNOWN_CODEC",
}  # fmt: skip
_DISK_FULL_CODE = 243
_CONNECT_TIMEOUT_S = 5


def engine_error(error: ClickHouseError, doing: str) -> Memory3Error:
    """Our error for one of the engine's; `doing` says what was tried."""
    code = getattr(error, "code", None)
    first_line = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    if code == _DISK_FULL_CODE:
        return StoreFull(
            f"the store's disk is full while {doing}: free space, nothing stored before is lost", code=code
        )
    if code in _DAMAGE_CODES:
        return KnowledgeBaseDamaged(
            f"the store's files are damaged ({_DAMAGE_CODES[code]} while {doing}): run `memory-service doctor`",
            code=code,
        )
    return StoreUnavailable(f"the store failed while {doing}: {first_line}", code=code)


@contextlib.contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Raises the engine's errors as ours."""
    try:
        yield
    except ClickHouseError as error:
        raise engine_error(error, doing) from error


class Engine:
    """The handles. Calls on one handle follow one another, so reading has its own; may be used from any thread."""

    def __init__(self, address: StoreAddress, options: StoreOptions) -> None:
        """Connects; raises StoreUnavailable when the folder is taken or the server does not answer."""
        self.dialect = Dialect.of(address, options)
        self._address = address
        self._options = options
        self._lock = threading.Lock()
        self._readers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._all: list[Any] = []
        self._types: dict[tuple[str, ...], Sequence[Any]] = {}
        self._connections = (
            _connections(address.host, address.port, secure=address.secure) if self.dialect.shared else None
        )
        self._folder_lock = None if self.dialect.shared else FolderLock(address.path)
        try:
            if self.dialect.shared:
                self._make_database()
            self.writer = self.connect()
            if not self.dialect.shared:
                self._require_tables()
            for _ in range(options.read_connections):
                self._readers.put(self.connect())
            # Of its own: whether the server answers must be known also while all others wait for it.
            self._asking = self.connect() if self.dialect.shared else None
        except StoreUnavailable:
            self.close()
            raise
        except ClickHouseError as error:
            self.close()
            raise StoreUnavailable(f"the store at {address} cannot be opened: {error}") from error

    def connect(self, database: str | None = None) -> Any:
        """One more handle, closed with the others."""
        if self.dialect.shared:
            client = clickhouse_connect.get_client(
                host=self._address.host, port=self._address.port, secure=self._address.secure,
                username=self._address.user, password=self._options.password or self._address.password,
                database=database or self._address.database, settings=self.dialect.settings(),
                compress=False,  # codes do not compress
                autogenerate_session_id=False,  # calls are independent of each other
                connect_timeout=_CONNECT_TIMEOUT_S, send_receive_timeout=self._options.timeout_s,
                pool_mgr=self._connections,
            )  # fmt: skip
        else:
            client = clickhouse_connect.get_client(
                interface="chdb", path=str(self._address.path), settings=self.dialect.settings()
            )
        self._all.append(client)
        return client

    def _make_database(self) -> None:
        name = self._address.database
        client = self.connect("default")
        if not client.query(
            "SELECT 1 FROM system.databases WHERE name = {name:String}", {"name": name}
        ).result_rows:
            client.command(f"CREATE DATABASE IF NOT EXISTS {name}{self.dialect.on_cluster}")

    def _require_tables(self) -> None:
        """An engine without the descriptions of its tables says nothing of their rows: it would begin with none."""
        rows = self.writer.query("EXISTS TABLE knowledge_bases").result_rows
        if not rows[0][0] and any((self._address.path / "store").glob("*/*/*/columns.txt")):
            raise StoreUnavailable(
                f"the store at {self._address} has lost the descriptions of its tables, whose rows are there: restore a"
                " backup"
            )

    @contextlib.contextmanager
    def reader(self) -> Iterator[Any]:
        """A handle for reading, the caller's own until it leaves the block."""
        client = self._readers.get()
        try:
            with engine_errors("reading"):
                yield client
        except BaseException:
            client = self._renewed(client)
            raise
        finally:
            self._readers.put(client)

    def _renewed(self, client: Any) -> Any:
        """A handle in place of one that failed: the embedded engine would put what is left of that answer before the
        next one.
        """  # noqa: D205
        if self.dialect.shared:
            return client
        with contextlib.suppress(ClickHouseError):
            fresh = self.connect()
            self._all.remove(client)
            client.close()
            return fresh
        return client

    def ping(self) -> None:
        """Returns when a server has answered, or an embedded engine has its folder. One thread at a time may ask."""
        if self._asking is not None:
            with engine_errors("asked whether it answers"):
                self._asking.command("SELECT 1")
        if self._folder_lock is not None:
            self._folder_lock.require()

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None, **options: Any) -> Sequence[Row]:
        """The rows of a query, by a reading handle."""
        with self.reader() as client:
            return client.query(sql, parameters=dict(parameters or {}), **options).result_rows

    def insert(self, table: str, columns: Mapping[str, Sequence[Any]], token: str = "") -> None:
        """Inserts columns as one block; durable when it returns.

        token: names this insert. The server drops another insert into the table with the same token: so it is sent
        again where no answer comes, and so it is a compare-and-swap between processes.
        """
        settings = {"insert_deduplication_token": token or uuid.uuid4().hex}
        for last in (not self.dialect.shared, True):
            try:
                with self._writing(f"writing to {table}"):
                    into = table, *columns
                    if into not in self._types:  # a client would ask for them before every insert
                        context = self.writer.create_insert_context(table, list(columns))
                        self._types[into] = context.column_types
                    self.writer.insert(
                        table, list(columns.values()), column_names=list(columns), column_oriented=True,
                        column_types=self._types[into], settings=settings,
                    )  # fmt: skip
                return
            except StoreUnavailable:
                if last:
                    raise

    def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Runs a statement that changes something."""
        with self._writing(sql.split("(")[0].strip()[:60]):
            self.writer.command(sql, parameters=dict(parameters or {}))

    @contextlib.contextmanager
    def _writing(self, doing: str) -> Iterator[None]:
        with self._lock:
            try:
                with engine_errors(doing):
                    yield
            except BaseException:
                self.writer = self._renewed(self.writer)
                raise

    def close(self) -> None:
        """Closes all handles; the embedded engine lets go of the folder."""
        with self._lock:
            while self._all:
                with contextlib.suppress(ClickHouseError):
                    self._all.pop().close()
            if self._connections is not None:
                self._connections.clear()
            if self._folder_lock is not None:
                self._folder_lock.release()


# Connections that take no answer whose head broke off. Python's http.client reads the end of a connection as the end of
# the headers; what is left of such an answer has status 200 and no rows: a document would look as if it were not there.


class _Whole:
    def getresponse(self) -> HTTPResponse:
        response: HTTPResponse = super().getresponse()  # type: ignore[misc]
        if (
            not response.chunked and response.length_remaining is None
        ):  # ClickHouse says either of every answer
            raise RemoteDisconnected("the answer broke off within its headers")
        return response


class _Connection(_Whole, HTTPConnection):  # type: ignore[misc]  # what urllib3 says of its own
    pass


class _SecureConnection(_Whole, HTTPSConnection):  # type: ignore[misc]
    pass


class _Connections(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecureConnections(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def _connections(host: str, port: int, *, secure: bool) -> PoolManager:
    """For clients of one server; through the proxy of the environment where it names one."""
    proxy = check_env_proxy("https" if secure else "http", host, port)
    pool: PoolManager = get_pool_manager(https_proxy=proxy) if secure else get_pool_manager(http_proxy=proxy)
    pool.pool_classes_by_scheme = {"http": _Connections, "https": _SecureConnections}
    return pool
