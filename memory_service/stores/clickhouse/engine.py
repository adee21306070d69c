"""Handles on one ClickHouse engine: one for writing, some for reading, and its errors as ours."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import math
import queue
import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http.client import RemoteDisconnected
from typing import Any

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError
from clickhouse_connect.driver.httputil import check_env_proxy, get_pool_manager
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool, PoolManager

from memory_service.errors import KnowledgeBaseDamaged, StoreFull, StoreUnavailable
from memory_service.stores.address import FolderLock, StoreAddress, StoreOptions
from memory_service.stores.clickhouse.dialect import Dialect, quoted
from memory_service.stores.clickhouse.myscale import BRUTE_FORCE, VectorIndex

ResultRow = Sequence[Any]

# What the engine says of bytes on disk that are not those it wrote: its error codes.
_DAMAGE_CODES = {6, 23, 27, 33, 40, 76, 79, 107, 117, 228, 246, 271, 432}
_DISK_FULL_CODE = 243
_CONNECT_TIMEOUT_S = 5


@contextlib.contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Raises the engine's errors as ours; `doing` says what was tried."""
    try:
        yield
    except ClickHouseError as error:
        code, first_line = (getattr(error, "code", None), (str(error) or type(error).__name__).splitlines()[0][:300])
        if code == _DISK_FULL_CODE:
            message = f"the store's disk is full while {doing}: free space"
            raise StoreFull(message, code=code) from error
        if code in _DAMAGE_CODES and not of_the_machine(str(error)):
            message = f"the store's files are damaged while {doing} ({first_line})"
            raise KnowledgeBaseDamaged(message, code=code) from error
        raise StoreUnavailable(f"the store failed while {doing}: {first_line}", code=code) from error


def of_the_machine(message: str) -> bool:
    """Whether the engine names an error of the operating system that passes, unlike a file that is gone."""
    found = re.search(r"errno: (\d+)", message)
    return found is not None and int(found[1]) not in (errno.ENOENT, errno.EUCLEAN)


class Engine:
    """The handles. Calls on one handle follow one another, so reading has its own; may be used from any thread."""

    def __init__(self, address: StoreAddress, options: StoreOptions) -> None:
        """Connects; raises StoreUnavailable when the folder is taken or the server does not answer."""
        index = VectorIndex(options.vector_index, options.search_parameters)
        self.dialect = Dialect(address.engine, options.cluster, options.max_threads, options.insert_quorum, index)
        self._address = address
        self._options = options
        self._lock = threading.Lock()
        self._readers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._all: list[Any] = []
        self._types: dict[tuple[str, ...], Sequence[Any]] = {}
        self._connections = _connections(address) if self.dialect.shared else None
        self._folder_lock = None if self.dialect.shared else FolderLock(address.path)
        try:
            if self.dialect.shared:
                self._make_database()
            self.writer = self.connect()
            if self.dialect.myscale:
                self.dialect = replace(self.dialect, brute_force=BRUTE_FORCE in self.writer.server_settings)
            for _ in range(2 * options.read_connections):  # a client of a server may be used by several threads
                self._readers.put(self.writer if self.dialect.shared else self.connect())
        except StoreUnavailable:
            self.close()
            raise
        except ClickHouseError as error:
            self.close()
            raise StoreUnavailable(f"the store at {address} cannot be opened: {error}") from error

    def connect(self, database: str = "") -> Any:
        """One more handle, closed with the others."""
        address, settings = self._address, self.dialect.settings()
        if self.dialect.shared:
            client = clickhouse_connect.get_client(
                host=address.host,
                port=address.port,
                secure=address.secure,
                username=address.user,
                password=self._options.password or address.password,
                database=database or address.database,
                settings=settings,
                pool_mgr=self._connections,
                connect_timeout=_CONNECT_TIMEOUT_S,
                send_receive_timeout=math.ceil(self._options.timeout_s),
                compress=False,  # codes do not compress
                autogenerate_session_id=False,  # calls are independent of each other
            )
        else:
            _require_chdb()
            client = clickhouse_connect.get_client(interface="chdb", path=str(address.path), settings=settings)
        self._all.append(client)
        return client

    def _make_database(self) -> None:
        name = self._address.database
        client = self.connect("default")
        if not client.query(f"SELECT 1 FROM system.databases WHERE name = {quoted(name)}").result_rows:
            client.command(f"CREATE DATABASE IF NOT EXISTS {name}{self.dialect.on_cluster}")

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
        """A handle that replaces a failed one, whose next answer would begin with what is left of the last one.

        Of the embedded engine alone: a server's answers are apart.
        """
        if self.dialect.shared:
            return client
        with contextlib.suppress(ClickHouseError):
            fresh = self.connect()
            self._all.remove(client)
            client.close()
            return fresh
        return client

    def ping(self) -> None:
        """Returns when a server has answered, or an embedded engine has its folder."""
        if self._folder_lock is not None:
            self._folder_lock.require()
        else:
            with engine_errors("pinging the server"):
                self.writer.command("SELECT 1")

    def mutating(self) -> bool:
        """Whether the engine still changes or removes rows in the background."""
        mutations = self.dialect.system("mutations")
        return bool(
            self.rows(f"SELECT count() FROM {mutations} WHERE database = currentDatabase() AND NOT is_done")[0][0]
        )

    def rows(self, sql: str, **options: Any) -> Sequence[ResultRow]:
        """The rows of a query, by a reading handle."""
        with self.reader() as client:
            return client.query(sql, **options).result_rows

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
                        table,
                        list(columns.values()),
                        column_names=list(columns),
                        column_oriented=True,
                        column_types=self._types[into],
                        settings=settings,
                    )
                return
            except StoreUnavailable:
                if last:
                    raise

    def command(self, sql: str) -> None:
        """Runs a statement that changes something."""
        with self._writing(sql.split("(")[0].strip()[:60]):
            self.writer.command(sql)

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


def _require_chdb() -> None:
    if importlib.util.find_spec("chdb") is None:
        raise StoreUnavailable(
            "chdb:///path, ClickHouse as a library, is for tests and trials and not installed: pip install"
            " 'chdb>=4.4,<5', or use file:///path"
        )


def _connections(address: StoreAddress) -> PoolManager:
    """For clients of one server; through the proxy of the environment where it names one.

    They take no answer whose head broke off. http.client reads the end of a connection as the end of the headers; what
    is left of such an answer has status 200 and no rows: a document would look as if it were not there.
    """
    proxy = check_env_proxy("https" if address.secure else "http", address.host, address.port)
    pool: PoolManager = get_pool_manager(http_proxy=proxy, https_proxy=proxy if address.secure else None)
    pool.pool_classes_by_scheme = {"http": _whole(HTTPConnectionPool), "https": _whole(HTTPSConnectionPool)}
    return pool


def _whole(pool: Any) -> Any:
    def getresponse(connection: Any) -> HTTPResponse:
        response: HTTPResponse = pool.ConnectionCls.getresponse(connection)
        if not response.chunked and response.length_remaining is None:  # ClickHouse says either of every answer
            raise RemoteDisconnected("the answer broke off within its headers")
        return response

    connection = type("WholeAnswers", (pool.ConnectionCls,), {"getresponse": getresponse})
    return type("WholeAnswersPool", (pool,), {"ConnectionCls": connection})
