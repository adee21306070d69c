"""Who may write to a store on a server: one process at a time, others read.

    table writers    holder | action "asks", "holds" or "leaves" | when, by the server's clock

Whoever wants to write looks whether another one holds or asks; if none does it says that it asks, and looks again: of
two that ask at the same time at least one sees the other and leaves. The holder repeats that it holds; one that is
silent for `LEASE_S`, or whose process is known to be dead, holds no more.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable

from memory_model.errors import Memory3Error
from memory_service.errors import StoreUnavailable
from memory_service.stores.clickhouse.engine import Engine, engine_errors

LEASE_S = 15.0
_REPEAT_S = 3.0
_MARGIN_S = 5.0

TABLE = """
CREATE TABLE IF NOT EXISTS writers (
    holder String, action LowCardinality(String), at DateTime64(6, 'UTC') DEFAULT now64(6), host String, pid UInt64
) ENGINE = MergeTree ORDER BY at TTL toDateTime(at) + INTERVAL 1 DAY
"""


class WriterElsewhere(StoreUnavailable):
    """Another process writes to the store."""


class WriterClaim:
    """One process's claim. Thread-safe. It has a handle of its own: a long batch must not keep it from repeating."""

    def __init__(self, engine: Engine) -> None:
        self._client = engine.connect()
        self.holder = uuid.uuid4().hex
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._held_until = 0.0
        self._lock = threading.Lock()
        with engine_errors("making the table writers"):
            for statement in engine.dialect.statements(TABLE):
                self._client.command(statement)

    @property
    def held(self) -> bool:
        """Whether this process may write now."""
        return time.monotonic() < self._held_until

    def take(self) -> None:
        """Gets or keeps the claim; raises WriterElsewhere that names the process which has it."""
        with self._lock:
            if self.held:
                return
            for attempt in range(3):
                self._refuse_if(self._others())
                self._say("asks")
                others = self._others()
                if not others:
                    self._hold()
                    return
                self._say("leaves")
                time.sleep(random.uniform(0.05, 0.2) * (attempt + 1))
            self._refuse_if(self._others() or others)

    def repeat(self) -> None:
        """Says again that it holds; to be called every few seconds."""
        with self._lock:
            if self.held:
                self._hold()

    def release(self) -> None:
        """Lets another process write at once."""
        with self._lock:
            if self._held_until:
                self._held_until = 0.0
                self._say("leaves")

    def _hold(self) -> None:
        started = time.monotonic()
        self._say("holds")
        self._held_until = started + LEASE_S - _MARGIN_S

    def _say(self, action: str) -> None:
        row = [self.holder, action, self._host, self._pid]
        with engine_errors("claiming to write"):
            self._client.insert("writers", [row], column_names=["holder", "action", "host", "pid"])

    def _others(self) -> list[tuple[str, int]]:
        """(host, process) of those that hold or ask."""
        sql = (
            "SELECT argMax(action, at) AS last, any(host), any(pid) FROM writers"
            f" WHERE at > now64(6) - INTERVAL {int(LEASE_S)} SECOND AND holder != '{self.holder}'"
            " GROUP BY holder HAVING last != 'leaves'"
        )
        with engine_errors("claiming to write"):
            rows = self._client.query(sql).result_rows
        return [(host, pid) for _, host, pid in rows if not self._is_dead(host, pid)]

    def _is_dead(self, host: str, pid: int) -> bool:
        """Whether it is a process of this machine that is no more; this process has one claim a store."""
        if host != self._host:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return pid == self._pid and os.getpid() == 1  # process 1 of a container that was started again

    def _refuse_if(self, others: list[tuple[str, int]]) -> None:
        if others:
            host, pid = others[0]
            raise WriterElsewhere(
                f"process {pid} on {host} writes to this store: send writes to that service, or stop it and wait"
                f" {LEASE_S:.0f} s"
            )


class Repeater:
    """A thread that does something every few seconds until it is stopped; errors of the store are for the next turn."""

    def __init__(self, action: Callable[[], None], interval_s: float = _REPEAT_S) -> None:
        self._action = action
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-claim", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._action()
            except Memory3Error:
                continue

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join(60)
