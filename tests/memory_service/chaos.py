"""Several processes on one server store that are stalled and killed, and what must hold of all that they said."""

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_service.stores.address import StoreOptions
from memory_service.stores.opening import open_store
from memory_service.stores.store import KnowledgeBase, Query, Store
from testing.clickhouse import PASSWORD, clickhouse_server, stall
from testing.encoders import vector_of
from testing.programs import ROOT
from tests.memory_service.pod import KEYS, OTHERS, K, version_of
from tests.memory_service.stored import IDENTITY, keys_near, require_whole

WHEN = ("before", "during", "after")
WHAT = (
    "INSERT INTO documents",
    "INSERT INTO documents",
    "INSERT INTO references",
    "INSERT INTO payloads",
    "INSERT INTO knowledge_bases",
    "SELECT",
)
NOTHING = 0
"""The value of a key without a document."""
COUNTED = ("operations", "acknowledged", "failed", "searches", "kills", "stalls", "server kills")
HEAD = " | ".join([*COUNTED, "lost", "doubled", "hidden"])


@dataclass
class Operation:
    """One operation of one process: when it began and ended; acknowledged, or perhaps carried out, until `ended`."""

    name: str
    arguments: list[Any]
    began: float
    ended: float = float("inf")
    result: Any = None
    acknowledged: bool = False


class Pod:
    """A process and what it said."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.memory_service.pod", *map(str, arguments)]
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
        values = [self.counts[name] for name in COUNTED]
        return " | ".join(map(str, [*values, len(self.lost), len(self.doubled), len(self.hidden)]))


def run(
    folder: Path,
    seed: int,
    seconds: float,
    *,
    pods: int = 3,
    stall_s: float = 1.5,
    timeout_s: float = 1.0,
    sweep_after_s: float = 30.0,
    kill_every_s: float = 4.0,
    server_kills: int = 0,
) -> Outcome:
    """Lets processes write and read for a while, stalls requests, kills processes; checks all that was said."""
    chance, outcome, gone = random.Random(seed), Outcome(), list[Pod]()
    with contextlib.ExitStack() as stack:
        server = contextlib.ExitStack()
        stack.callback(lambda: server.close())
        port = server.enter_context(clickhouse_server(folder))
        url = f"clickhouse://127.0.0.1:{port}/memories"
        options = StoreOptions(password=PASSWORD, timeout_s=60.0 + 2 * stall_s, sweep_after_s=sweep_after_s)
        store = stack.enter_context(contextlib.closing(open_store(url, options)))
        base = store.create("kb", "", IDENTITY)
        seeds = itertools.count(1 + 1000 * seed)
        running = [Pod(url, next(seeds), timeout_s, sweep_after_s) for _ in range(pods)]
        for pod in running:
            assert pod.opened.wait(120)
        started = time.monotonic()
        kill_at = started + chance.uniform(0.3, 1) * kill_every_s
        restarts = sorted(started + chance.uniform(0, seconds) for _ in range(server_kills))
        while (now := time.monotonic()) < started + seconds:
            if restarts and now > restarts[0]:
                restarts.pop(0)
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/kill", timeout=60)
                server.close()
                server.enter_context(clickhouse_server(folder, port))
                outcome.counts["server kills"] += 1
            stall(url, chance.choice(WHEN), chance.choice(WHAT), chance.uniform(0, 2) * stall_s)
            outcome.counts["stalls"] += 1
            if now > kill_at:
                kill_at += chance.uniform(0.5, 1.5) * kill_every_s
                gone.append(running.pop(chance.randrange(len(running))))
                gone[-1].kill()
                outcome.counts["kills"] += 1
                release = ["newer"] if now > started + seconds / 3 else []
                running.append(Pod(url, next(seeds), timeout_s, sweep_after_s, *release))
            time.sleep(chance.uniform(0.3, 1.0))
        for pod in running:
            assert pod.opened.wait(120)  # also one that took the place of a killed one
            pod.kill()
        time.sleep(2 * stall_s + 0.5)  # what the server goes on with although nobody waits for it
        _check(store, base, [one for pod in gone + running for one in pod.operations.values()], outcome)
        require_whole(store, base)
    return outcome


Writes = dict[str, list[tuple[int, Operation]]]
"""Of each key, by any process; values are unique."""


def _may_be(writes: Sequence[tuple[int, Operation]], value: int, began: float, ended: float) -> bool:
    """Whether a read that took from `began` to `ended` may find the value.

    Of a write that another one, acknowledged before the read began, began after: no more.
    """
    latest = max((other.began for _, other in writes if other.acknowledged and other.ended < began), default=None)
    if latest is None and value == NOTHING:
        return True
    writers = [operation for one, operation in writes if one == value and operation.began <= ended]
    return any(latest is None or writer.ended >= latest for writer in writers)


def _check(store: Store, base: KnowledgeBase, operations: Iterable[Operation], outcome: Outcome) -> None:
    operations = sorted(operations, key=lambda one: one.began)
    writes: Writes = defaultdict(list)
    for one in operations:
        outcome.counts["operations"] += 1
        outcome.counts["acknowledged" if one.acknowledged else "failed"] += 1
        if one.name == "write":
            for key, value in one.arguments:
                writes[key].append((value, one))
        elif one.name == "delete":
            for key in one.arguments:
                writes[key].append((NOTHING, one))
    for one in operations:
        if one.name == "search" and one.acknowledged:
            outcome.counts["searches"] += 1
            _check_hits(writes, one.result, one.began, one.ended, outcome)
    _check_names([one for one in operations if one.name in ("create", "drop")], outcome)
    now = time.monotonic()
    stored = store.versions(base, KEYS)
    for key in KEYS:
        value = int(store.document(base, key).title) if key in stored else NOTHING
        if not _may_be(writes[key], value, now, now):
            outcome.lost.append(f"{key} is {value} at the end")
        elif value != NOTHING and key not in keys_near(store, base, f"{key} part 0", k=1):
            outcome.hidden.append(f"{key} is not nearest to its own text at the end")
    (hits,) = store.retrieve(base, Query(vector_of("any")[None], K)).hits
    _check_hits(writes, [(h.document_key, int(h.title), h.chunk_number) for h in hits], now, now, outcome)
    names = [one.name for one in store.knowledge_bases()]
    assert len(names) == len(set(names))
    assert set(names) <= {"kb", *OTHERS}


def _check_hits(writes: Writes, hits: Iterable[Sequence[Any]], began: float, ended: float, outcome: Outcome) -> None:
    """A search of everything finds one version of each document, whole, that was there while it ran."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, value, chunk in hits:
        found[key].append((value, chunk))
    for key in KEYS:
        values = {value for value, _ in found[key]} or {NOTHING}
        if len(values) > 1 or len(set(found[key])) < len(found[key]):
            outcome.doubled.append(f"{key}: {sorted(found[key])}")
            continue
        (value,) = values
        chunks = {chunk for _, chunk in found[key]}
        whole = set(range(len(version_of(key, value).references))) if value != NOTHING else set()
        if chunks != whole or not _may_be(writes[key], value, began, ended):
            outcome.hidden.append(f"{key}: a search found {value}, chunks {sorted(chunks)}")


def _check_names(operations: list[Operation], outcome: Outcome) -> None:
    """Between two acknowledged creations of one name there is a drop."""
    for name in OTHERS:
        mine = [one for one in operations if one.arguments == [name]]
        created = [one for one in mine if one.name == "create" and one.result is True]
        for first, second in itertools.pairwise(created):
            if not any(o.name == "drop" and o.began < second.ended and o.ended > first.began for o in mine):
                outcome.doubled.append(f"knowledge base {name} was created twice")
