"""Several processes on one server store that are stalled and killed, and what must hold of all that they said."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_service.stores import Query, StoreOptions, open_store
from memory_service.stores.clickhouse.store import ClickHouseStore
from tests.memory_service.encoders import vector_of
from tests.memory_service.pod import KEYS, OTHERS, K, version_of
from tests.memory_service.stored import IDENTITY, PASSWORD, clickhouse_server, keys_near, require_whole, stall

ROOT = Path(__file__).resolve().parents[2]
WHEN = ("before", "during", "after")
WHAT = ("INSERT INTO documents", "INSERT INTO documents", "INSERT INTO references", "INSERT INTO payloads",
        "INSERT INTO knowledge_bases", "SELECT")  # fmt: skip
NOTHING = 0
"""The value of a key without a document."""


@dataclass
class Operation:
    """One operation of one process: when it began and ended; acknowledged, or perhaps carried out, until `ended`."""

    name: str
    arguments: list[Any]
    began: float
    ended: float = float("inf")
    result: Any = None
    acknowledged: bool = False


@dataclass
class Register:
    """The writes of one key by any process; values are unique."""

    writes: list[tuple[int, Operation]] = field(default_factory=list)

    def may_be(self, value: int, began: float, ended: float) -> bool:
        """Whether a read that took from `began` to `ended` may find the value.

        Of a write that another one, acknowledged before the read began, began after: no more.
        """
        writers = [operation for one, operation in self.writes if one == value and operation.began <= ended]
        latest = max(
            (other.began for _, other in self.writes if other.acknowledged and other.ended < began),
            default=float("-inf"),
        )
        if value == NOTHING and latest == float("-inf"):
            return True
        return any(writer.ended >= latest for writer in writers)


class Pod:
    """A process and what it said."""

    def __init__(
        self, url: str, seed: int, timeout_s: float, sweep_after_s: float, release: str = ""
    ) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.memory_service.pod",
            url,
            str(seed),
            str(timeout_s),
            str(sweep_after_s),
        ]
        command += [release] if release else []
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.operations: dict[int, Operation] = {}
        self.opened = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return
            at, what, *more = json.loads(line)
            if what == "begin":
                number, name, arguments = more
                self.operations[number] = Operation(name, arguments, at)
            elif what == "open":
                self.opened.set()
            else:
                operation = self.operations[more[0]]
                operation.ended, operation.result = at, more[1]
                operation.acknowledged = what == "done"

    def kill(self) -> None:
        """kill -9; what it had begun may have happened, and no more begins."""
        assert self.process.poll() is None, "it ended by itself"
        self.process.kill()
        self.process.wait(60)
        self._reader.join(60)
        for operation in self.operations.values():
            operation.ended = min(operation.ended, time.monotonic())


@dataclass
class Outcome:
    """What a run showed; the lists are of violations, a sentence each."""

    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    @property
    def row(self) -> str:
        """A row of a table."""
        names = ("operations", "acknowledged", "failed", "searches", "kills", "stalls", "server kills")
        values = [self.counts[name] for name in names]
        return " | ".join(map(str, [*values, len(self.lost), len(self.doubled), len(self.hidden)]))


HEAD = (
    "operations | acknowledged | failed | searches | kills | stalls | server kills | lost | doubled | hidden"
)


def run(
    folder: Path, seed: int, seconds: float, *, pods: int = 3, stall_s: float = 1.5, timeout_s: float = 1.0,
    sweep_after_s: float = 30.0, kill_every_s: float = 4.0, server_kills: int = 0,
) -> Outcome:  # fmt: skip
    """Lets processes write and read for a while, stalls requests, kills processes; checks all that was said."""
    chance, outcome, gone = random.Random(seed), Outcome(), list[Pod]()
    server = clickhouse_server(folder)
    port = server.__enter__()
    url = f"clickhouse://127.0.0.1:{port}/memories"
    options = StoreOptions(read_connections=1, password=PASSWORD, timeout_s=60.0, sweep_after_s=sweep_after_s)
    store = open_store(url, options)
    assert isinstance(store, ClickHouseStore)
    try:
        base = store.create("kb", "", IDENTITY)
        seeds = iter(range(1 + 1000 * seed, 10**9))

        def begin(release: str = "") -> Pod:
            return Pod(url, next(seeds), timeout_s, sweep_after_s, release)

        running = [begin() for _ in range(pods)]
        for pod in running:
            assert pod.opened.wait(120)
        end = time.monotonic() + seconds
        kill_at = time.monotonic() + chance.uniform(0.3, 1) * kill_every_s
        newer_at = time.monotonic() + seconds / 3
        restarts = sorted(chance.uniform(0, seconds) + time.monotonic() for _ in range(server_kills))
        while time.monotonic() < end:
            if not (restarts and time.monotonic() > restarts[0]):
                stall(url, chance.choice(WHEN), chance.choice(WHAT), chance.uniform(0, 2) * stall_s)
                outcome.counts["stalls"] += 1
            if time.monotonic() > kill_at:
                kill_at += chance.uniform(0.5, 1.5) * kill_every_s
                pod = running.pop(chance.randrange(len(running)))
                pod.kill()
                gone.append(pod)
                outcome.counts["kills"] += 1
                newer = newer_at is not None and time.monotonic() > newer_at
                running.append(begin("newer" if newer else ""))
            if restarts and time.monotonic() > restarts[0]:
                restarts.pop(0)
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/kill", timeout=60)
                server.__exit__(None, None, None)
                server = clickhouse_server(folder, port)
                server.__enter__()
                outcome.counts["server kills"] += 1
            time.sleep(chance.uniform(0.3, 1.0))
        for pod in running:
            assert pod.opened.wait(120)  # also one that took the place of a killed one
            pod.kill()
        time.sleep(2 * stall_s + 0.5)  # what the server goes on with although nobody waits for it
        gone += running
        _check(store, [one for pod in gone for one in pod.operations.values()], outcome)
        require_whole(store, base)
        return outcome
    finally:
        store.close()
        server.__exit__(None, None, None)


def _check(store: ClickHouseStore, operations: Iterable[Operation], outcome: Outcome) -> None:
    operations = sorted(operations, key=lambda one: one.began)
    registers: dict[str, Register] = defaultdict(Register)
    for one in operations:
        outcome.counts["operations"] += 1
        outcome.counts["acknowledged" if one.acknowledged else "failed"] += 1
        outcome.counts["searches"] += one.name == "search"
        if one.name == "write":
            for key, value in one.arguments:
                registers[key].writes.append((value, one))
        elif one.name == "delete":
            for key in one.arguments:
                registers[key].writes.append((NOTHING, one))
    for one in operations:
        if one.name == "search" and one.acknowledged:
            _check_hits(registers, one.result, one.began, one.ended, outcome)
    _check_names([one for one in operations if one.name in ("create", "drop")], outcome)
    now = time.monotonic()
    base = store.knowledge_base("kb")
    stored = store.versions(base, KEYS)
    for key in KEYS:
        value = int(store.document(base, key).title) if key in stored else NOTHING
        if not registers[key].may_be(value, now, now):
            outcome.lost.append(f"{key} is {value} at the end")
        elif value != NOTHING and key not in keys_near(store, base, f"{key} part 0", k=1):
            outcome.hidden.append(f"{key} is not nearest to its own text at the end")
    (hits,) = store.retrieve(base, Query(vector_of("any")[None], K)).hits
    _check_hits(registers, [(h.document_key, int(h.title), h.chunk_number) for h in hits], now, now, outcome)
    names = [one.name for one in store.knowledge_bases()]
    assert len(names) == len(set(names))
    assert set(names) <= {"kb", *OTHERS}


def _check_hits(
    registers: dict[str, Register],
    hits: Iterable[tuple[str, int, int]],
    began: float,
    ended: float,
    outcome: Outcome,
) -> None:
    """A search of everything finds one version of each document, whole, that was there while it ran."""
    found = Counter((key, value, chunk) for key, value, chunk in hits)
    values: dict[str, set[int]] = defaultdict(set)
    for key, value, _ in found:
        values[key].add(value)
    for key in KEYS:
        there = values.get(key, {NOTHING})
        if len(there) > 1 or any(count > 1 for hit, count in found.items() if hit[0] == key):
            outcome.doubled.append(f"{key}: {sorted(hit for hit in found.elements() if hit[0] == key)}")
            continue
        (value,) = there
        chunks = {chunk for one, _, chunk in found if one == key}
        whole = set(range(len(version_of(key, value).references))) if value != NOTHING else set()
        if chunks != whole or not registers[key].may_be(value, began, ended):
            outcome.hidden.append(f"{key}: a search found {value}, chunks {sorted(chunks)}")


def _check_names(operations: list[Operation], outcome: Outcome) -> None:
    """Between two acknowledged creations of one name there is a drop."""
    for name in OTHERS:
        created = [
            one
            for one in operations
            if one.name == "create" and one.arguments == [name] and one.result is True
        ]
        drops = [one for one in operations if one.name == "drop" and one.arguments == [name]]
        for first, second in itertools.pairwise(created):
            if not any(one.began < second.ended and one.ended > first.began for one in drops):
                outcome.doubled.append(f"knowledge base {name} was created twice")
