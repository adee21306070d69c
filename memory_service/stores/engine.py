"""Handles on one ClickHouse engine: one for writing, some for reading, and its errors as ours."""

from __future__ import annotations

import contextlib
import fcntl
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError

from memory_model.errors import Memory3Error
from memory_service.errors import KnowledgeBaseDamaged, StoreFull, StoreUnavailable

Row = Sequence[Any]

# What the engine says of bytes on disk that are not those it wrote (its error codes by name).
_DAMAGE_CODES = {
    6: "CANNOT_PARSE_TEXT", 23: "CANNOT_READ_FROM_ISTREAM", 27: "CANNOT_PARSE_INPUT", 33: "CANNOT_READ_ALL_DATA",
    40: "CHECKSUM_DOESNT_MATCH", 76: "CANNOT_OPEN_FILE", 79: "INCORRECT_FILE_NAME", 107: "FILE_DOESNT_EXIST",
    228: "SIZES_OF_FILES_MISMATCH", 246: "CORRUPTED_DATA", 271: "CANNOT_DECOMPRESS", 432: "UNKNOWN_CODEC",
}  # fmt: skip
_DISK_FULL_CODE = 243
# The engine locks its folder too, but does not say so in its error.
_LOCK_FILE = "memory-service.lock"
_DELETE_TIMEOUT_S = 120.0
_DELETE_POLL_S = 0.003

_SETTINGS = {
    # Acknowledged means on disk and searchable: no buffering in the engine.
    "async_insert": 0,
    # One batch is one block, hence atomic.
    "max_insert_block_size": 1 << 20,
}


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


class Engine:
    """The handles. Calls on one handle follow one another, so reading has its own; may be used from any thread."""

    def __init__(self, path: Path, read_connections: int) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._readers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._all: list[Any] = []
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._folder_lock = (path / _LOCK_FILE).open("w")
            fcntl.flock(self._folder_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.writer = self._connect()
            for _ in range(read_connections):
                self._readers.put(self._connect())
        except BlockingIOError as error:
            raise StoreUnavailable(
                f"the store at {path} is in use by another process: stop that service, or ask it with --address"
            ) from error
        except OSError as error:
            raise StoreUnavailable(
                f"the store cannot use {path}: {error.strerror}; name a folder that can be written"
            ) from error
        except ClickHouseError as error:
            self.close()
            raise StoreUnavailable(f"the store at {path} cannot be opened: {error}") from error

    def _connect(self) -> Any:
        client = clickhouse_connect.get_client(
            interface="chdb", path=str(self.path), settings=dict(_SETTINGS)
        )
        self._all.append(client)
        return client

    @contextlib.contextmanager
    def reader(self) -> Iterator[Any]:
        """A handle for reading, the caller's own until it leaves the block."""
        client = self._readers.get()
        try:
            yield client
        except ClickHouseError as error:
            raise engine_error(error, "reading") from error
        finally:
            self._readers.put(client)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None, **options: Any) -> Sequence[Row]:
        """The rows of a query, by a reading handle."""
        with self.reader() as client:
            return client.query(sql, parameters=dict(parameters or {}), **options).result_rows

    def insert(self, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Inserts columns as one block; durable when it returns."""
        with self._writing(f"writing to {table}"):
            self.writer.insert(
                table, list(columns.values()), column_names=list(columns), column_oriented=True
            )

    def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Runs a statement that changes something."""
        with self._writing(sql.split("(")[0].strip()[:60]):
            self.writer.command(sql, parameters=dict(parameters or {}))

    def delete(self, table: str, kb: int, ids: Sequence[int]) -> None:
        """Removes rows of knowledge base `kb` by id; they are gone for every later query when it returns.

        The engine masks the rows in the background, and its idle workers may sleep for seconds before they look
        for work: starting the merges, which run already, wakes them.
        """
        statement = f"DELETE FROM {table} IN PARTITION ID '{int(kb)}' WHERE id IN {{ids:Array(UInt64)}}"
        self.command(f"{statement} SETTINGS lightweight_deletes_sync = 0", {"ids": list(ids)})
        deadline = time.monotonic() + _DELETE_TIMEOUT_S
        while pending := self.rows(
            "SELECT latest_fail_reason FROM system.mutations"
            " WHERE database = currentDatabase() AND table = {table:String} AND NOT is_done",
            {"table": table},
        ):
            if time.monotonic() > deadline:
                reasons = "; ".join(str(row[0]) for row in pending if row[0]) or "no reason given"
                raise StoreUnavailable(f"the store did not remove rows of {table} in time: {reasons}")
            self.command(f"SYSTEM START MERGES {table}")
            time.sleep(_DELETE_POLL_S)

    @contextlib.contextmanager
    def _writing(self, doing: str) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except ClickHouseError as error:
                raise engine_error(error, doing) from error

    def close(self) -> None:
        """Closes all handles; the engine lets go of the folder."""
        with self._lock:
            while self._all:
                with contextlib.suppress(ClickHouseError):
                    self._all.pop().close()
            self._folder_lock.close()
