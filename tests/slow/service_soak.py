"""Mixed load on a service for so many minutes, with kills and full disks, and its memory and latency plotted.

    python -m tests.slow.service_soak --minutes 360 --engine file

Documents are ingested, replaced, deleted, retrieved, filtered and backed up. The service is a process of its own with
a small encoder; now and then it is killed by SIGKILL, or its disk (a small file system, where this user may mount one)
is full for a while. After each of these every document is compared with what was acknowledged. Writes samples.csv and
a picture of each quantity to build/soak, and where something was wrong, the store's files and the service's log.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from memory3.errors import Memory3Error
from memory_service.archive import Archive
from memory_service.client.backup import back_up
from protos.memory.v1.filter_pb2 import Filter
from testing.processes import resident_bytes
from tests.memory_service import processes
from tests.memory_service.running import Client, document, ingest_requests, reason_of

OUT = Path("build/soak")
KEYS, BATCH, LATENCIES = 2000, 20, 500
QUANTITIES = ("resident_mb", "descriptors", "p50_ms", "p99_ms", "disk_mb", "operations", "unexpected")
OUTAGE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""How calls may fail while the service is away or its disk is full."""
FULL_S, RECOVERY_S = (2.0, 10.0), 1800.0
_CHANNEL = [("grpc.max_reconnect_backoff_ms", 500), ("grpc.initial_reconnect_backoff_ms", 100)]


@dataclass(frozen=True)
class Plan:
    """For how long, and how often what happens; disk_mb: of a file system of its own, 0 for none and no full disks."""

    engine: str = "file"
    minutes: float = 3.0
    backup_minutes: float = 10.0
    trouble_minutes: float = 5.0
    disk_mb: int = 0
    keys: int = KEYS


@dataclass
class Outcome:
    """What happened. lost: documents that were not there as acknowledged; unexpected: calls that failed otherwise."""

    rows: list[dict[str, float]] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)


class Load:
    """What threads do to one knowledge base until they are stopped."""

    def __init__(self, channel: grpc.Channel, address: str, backups: Path, plan: Plan, outcome: Outcome) -> None:
        self.latencies_ms: deque[float] = deque(maxlen=LATENCIES)
        self.stop, self.trouble = threading.Event(), threading.Event()
        self.calm = threading.Event()
        self.outcome = outcome
        self._channel, self._client = channel, Client(channel)
        self._address, self._backups, self._plan = address, backups, plan
        self._versions: dict[str, list[str]] = defaultdict(lambda: [""])
        """Of each key the last text that is known to be stored and those sent after it; "" for none."""

    def write(self) -> None:
        """Ingests new and changed documents, and deletes others; after trouble compares them all."""
        chance = random.Random(1)
        while not self.stop.is_set():
            keys = [f"d{n}" for n in chance.sample(range(self._plan.keys), BATCH + 5)]
            self.ingest(keys[:BATCH], chance)
            self._delete(keys[BATCH:])
            if self.trouble.is_set() and self.calm.is_set():
                self.trouble.clear()
                self.compare()

    def ingest(self, keys: list[str], chance: random.Random) -> None:
        """A new version of each."""
        documents = [document(key, f"Fact {key}: {chance.random()}.", group=key[-1]) for key in keys]
        for one in documents:
            self._versions[one.key].append(one.text)
        with self._counted("ingest"):
            for answer in self._client.ingestion.Ingest(iter(ingest_requests("soak", documents)), timeout=120):
                if answer.HasField("acknowledged"):
                    one = documents[answer.acknowledged.sequence - 1]
                    versions = self._versions[one.key]
                    del versions[: versions.index(one.text)]
                elif answer.HasField("failed") and reason_of(answer.failed) not in ("STORE_FULL", "STORE_UNAVAILABLE"):
                    self.outcome.unexpected.append(f"ingest: {reason_of(answer.failed)}")

    def read(self) -> None:
        """Retrieves, half of it with a filter."""
        chance = random.Random(2)
        while not self.stop.is_set():
            group = Filter(is_in=Filter.In(name="group", values=[str(chance.randrange(10))]))
            more = {"filter": group} if chance.random() < 0.5 else {}
            began = time.perf_counter()
            with self._counted("retrieve"):
                self._client.hits("soak", f"Fact {chance.randrange(KEYS)}", 5, **more)
                self.latencies_ms.append(1000 * (time.perf_counter() - began))

    def back_up(self) -> None:
        """At its interval."""
        while not self.stop.wait(60 * self._plan.backup_minutes):
            self.save()

    def save(self) -> None:
        """One backup, which reads every payload."""
        with self._counted("backup"):
            back_up(self._address, "soak", Archive(str(self._backups)), keep=2)

    def reconnect(self) -> None:
        """Waits until its own channel, which was told of the outage, tries again."""
        grpc.channel_ready_future(self._channel).result(timeout=RECOVERY_S)

    def compare(self) -> None:
        """Every document has the text that was acknowledged last or one sent since."""
        self.outcome.happened["comparison"] += 1
        for key, versions in list(self._versions.items()):
            text = self._stored(key)
            if text is None:
                return  # the next trouble came before this ended
            if text not in versions:
                self.outcome.lost.append(f"{key}: {text!r} is stored, not one of {versions}")
            self._versions[key] = [text]

    def _stored(self, key: str) -> str | None:
        try:
            return self._client.document("soak", key).references[0].text
        except grpc.RpcError as error:
            return "" if error.code() is grpc.StatusCode.NOT_FOUND else None

    def _delete(self, keys: list[str]) -> None:
        for key in keys:
            self._versions[key].append("")
        with self._counted("delete"):
            self._client.delete("soak", *keys)
            for key in keys:
                self._versions[key] = [""]

    @contextlib.contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        """Counts the call; how it fails in an outage is expected, and soon after one."""
        calm = self.calm.is_set() and not self.trouble.is_set()
        try:
            yield
            self.outcome.happened[what] += 1
        except (grpc.RpcError, Memory3Error) as error:
            code = error.code() if isinstance(error, grpc.RpcError) else None
            self.outcome.happened[f"{what} in an outage"] += 1
            if (calm and not self.trouble.is_set()) or not (code in OUTAGE or isinstance(error, Memory3Error)):
                self.outcome.unexpected.append(f"{what}: {code} {error}"[:300])
            self.stop.wait(0.1)


def make_trouble(load: Load, plan: Plan, started: Started, disk: Path) -> None:
    """Kills the service or fills its disk at random moments; returns when the load stops."""
    chance = random.Random(3)
    while not load.stop.wait(60 * plan.trouble_minutes * chance.uniform(0.5, 1.5)):
        load.calm.clear()
        load.trouble.set()
        if plan.disk_mb and chance.random() < 0.5:
            load.outcome.happened["full disk"] += 1
            ballast = disk / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            load.stop.wait(chance.uniform(*FULL_S))
            ballast.unlink()
        else:
            load.outcome.happened["kill"] += 1
            started.again()
        if not started.recovered():
            load.outcome.unexpected.append(f"{RECOVERY_S:.0f} s after trouble nothing could be stored")
        load.reconnect()
        load.calm.set()


class Started:
    """The service, which can be killed and started again on the same port."""

    def __init__(self, folder: Path, store: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = (folder / "log").open("ab")
        self._command = [sys.executable, "-m", processes.__name__, store, str(folder / "port"), "0"]
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "MEMORY_SERVICE_LISTEN": self.address}
        return subprocess.Popen(self._command, stdout=self._log, stderr=self._log, env=environment)

    def again(self) -> None:
        """Killed by SIGKILL, then started."""
        self.end()
        self.process = self._start()

    def answers(self) -> bool:
        """Whether a small document is stored."""
        with grpc.insecure_channel(self.address) as channel:
            try:
                (_, answer) = Client(channel).ingest("probe", document("probe", f"At {time.time()}."))
            except grpc.RpcError:
                return False
        return bool(answer.HasField("acknowledged"))

    def recovered(self) -> bool:
        """Waits until it stores documents; False if that takes too long."""
        until = time.monotonic() + RECOVERY_S
        while not self.answers():
            if time.monotonic() > until or self.process.poll() is not None:
                return False
            time.sleep(0.1)
        return True

    def end(self) -> None:
        """By SIGKILL."""
        self.process.kill()
        self.process.wait()

    def sample(self) -> dict[str, float]:
        """Memory and descriptors of the process."""
        try:
            descriptors = len(os.listdir(f"/proc/{self.process.pid}/fd"))
            return {"resident_mb": resident_bytes(self.process.pid) / 1e6, "descriptors": descriptors}
        except OSError:
            return {"resident_mb": 0.0, "descriptors": 0}  # it is being started


def bytes_of(folder: Path) -> int:
    """Of all its files; those that go meanwhile count or not."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


@contextlib.contextmanager
def own_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A small file system in the folder, or the folder itself for 0."""
    folder.mkdir()
    if megabytes:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        if megabytes:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def run(folder: Path, plan: Plan, evidence: Path | None = None) -> Outcome:
    """The load for so long in `folder`, then a last comparison. evidence: gets store and log if something was wrong."""
    outcome = Outcome()
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(own_disk(folder / "disk", plan.disk_mb))
        started = Started(folder, f"{plan.engine}://{disk}/store")
        stack.callback(started.end)
        assert started.recovered(), (folder / "log").read_text()
        channel = stack.enter_context(grpc.insecure_channel(started.address, options=_CHANNEL))
        load = Load(channel, started.address, folder / "backups", plan, outcome)
        load.calm.set()
        load.ingest([f"d{n}" for n in range(plan.keys)], random.Random(0))
        work = (load.write, load.read, load.read, load.back_up, lambda: make_trouble(load, plan, started, disk))
        with ThreadPoolExecutor(len(work)) as pool:
            doing = [pool.submit(each) for each in work]
            try:
                began, seconds = time.monotonic(), 60 * plan.minutes
                while (elapsed := time.monotonic() - began) < seconds:
                    time.sleep(min(max(1.0, seconds / 500), seconds - elapsed))
                    ordered = sorted(load.latencies_ms) or [0.0]
                    row = {
                        "seconds": time.monotonic() - began,
                        **started.sample(),
                        "p50_ms": ordered[len(ordered) // 2],
                        "p99_ms": ordered[int(0.99 * (len(ordered) - 1))],
                        "disk_mb": bytes_of(disk / "store") / 1e6,
                        "operations": sum(outcome.happened.values()),
                        "unexpected": len(outcome.unexpected),
                    }
                    outcome.rows.append(row)
            finally:
                load.stop.set()
            for one in doing:
                one.result()
        load.compare()
        load.save()
        if evidence is not None and (outcome.lost or outcome.unexpected):
            started.end()
            shutil.copytree(disk, evidence / "disk", ignore=shutil.ignore_patterns("ballast"))
            shutil.copy(folder / "log", evidence)
    return outcome


def plot(rows: list[dict[str, float]], name: str) -> str:
    """One quantity over time as SVG."""
    width, height = 640, 200
    most = max(row[name] for row in rows) or 1.0
    last = rows[-1]["seconds"] or 1.0
    points = " ".join(f"{width * r['seconds'] / last:.1f},{height - height * r[name] / most:.1f}" for r in rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 20}">'
        f'<polyline points="{points}" fill="none" stroke="black"/>'
        f'<text x="4" y="{height + 15}" font-size="12">{name}, 0 to {most:.1f}, over {last:.0f} s</text></svg>'
    )


def main() -> None:
    """Runs the load; prints a sample of the first quarter, the last one, what happened and what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=Plan.minutes)
    parser.add_argument("--engine", choices=("file", "chdb"), default=Plan.engine)
    parser.add_argument("--backup-minutes", type=float, default=Plan.backup_minutes)
    parser.add_argument("--trouble-minutes", type=float, default=Plan.trouble_minutes, help="Between kills.")
    parser.add_argument("--disk-mb", type=int, default=0, help="Size of a disk that is filled at times; needs root.")
    given = parser.parse_args()
    if given.engine == "chdb" and given.disk_mb:
        parser.error("chdb does not notice writes that fail on a full disk (decision 0073): try it without --disk-mb")
    out = OUT / given.engine
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Path(folder), Plan(**vars(given)), out)
    rows = outcome.rows
    with (out / "samples.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["seconds", *QUANTITIES])
        table.writeheader()
        table.writerows(rows)
    for name in QUANTITIES:
        (out / f"{name}.svg").write_text(plot(rows, name))
    for moment, row in (("first", rows[len(rows) // 4]), ("last", rows[-1])):
        print(moment, {name: round(value, 1) for name, value in row.items()})
    print(dict(outcome.happened))
    for line in [*outcome.lost, *outcome.unexpected][:50]:
        print(line)
    print(f"{len(outcome.lost)} lost, {len(outcome.unexpected)} unexpected failures")


if __name__ == "__main__":
    main()
