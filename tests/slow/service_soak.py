"""Mixed load on a service for so many minutes, with its memory, descriptors, latency and disk plotted.

    python -m tests.slow.service_soak --minutes 360 --engine file

Documents are ingested, replaced, deleted, retrieved, filtered and backed up; the service runs in this process with a
small encoder. Writes samples.csv and a picture of each quantity to build/soak. Not in it: kill -9 and full disks, which
`tests/memory_service/test_kills.py` and `test_full_disk.py` try.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import grpc

from memory_service.archive import Archive
from memory_service.client.backup import back_up
from protos.memory.v1.filter_pb2 import Filter
from testing.encoders import HashEncoder
from tests.memory_service.running import Client, document, running

OUT = Path("build/soak")
KEYS, LATENCIES = 2000, 500
QUANTITIES = ("resident_mb", "descriptors", "p50_ms", "p99_ms", "disk_mb", "operations", "failed")


class Load:
    """What threads do to one knowledge base until they are stopped."""

    def __init__(self, client: Client, address: str, backups: Path, backup_s: float) -> None:
        self.latencies_ms: deque[float] = deque(maxlen=LATENCIES)
        self.operations = self.failed = 0
        self.stop = threading.Event()
        self._client, self._address, self._backups, self._backup_s = client, address, backups, backup_s

    def write(self) -> None:
        """Ingests new and changed documents, and deletes others."""
        chance = random.Random(1)
        while not self.stop.is_set():
            numbers = chance.sample(range(KEYS), 20)
            documents = [document(f"d{n}", f"Fact {n}: {chance.random()}.", group=str(n % 10)) for n in numbers]
            with self._counted():
                self._client.ingest("soak", *documents)
            with self._counted():
                self._client.delete("soak", *(f"d{n}" for n in chance.sample(range(KEYS), 5)))

    def read(self) -> None:
        """Retrieves, half of it with a filter."""
        chance = random.Random(2)
        while not self.stop.is_set():
            group = Filter(is_in=Filter.In(name="group", values=[str(chance.randrange(10))]))
            more = {"filter": group} if chance.random() < 0.5 else {}
            began = time.perf_counter()
            with self._counted():
                self._client.hits("soak", f"Fact {chance.randrange(KEYS)}", 5, **more)
                self.latencies_ms.append(1000 * (time.perf_counter() - began))

    def back_up(self) -> None:
        """At its interval."""
        while not self.stop.wait(self._backup_s):
            with self._counted():
                back_up(self._address, "soak", Archive(str(self._backups)), keep=2)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.operations += 1
        try:
            yield
        except grpc.RpcError:
            self.failed += 1


def sample(load: Load, store: Path) -> dict[str, float]:
    """The quantities at this moment."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    ordered = sorted(load.latencies_ms) or [0.0]
    return {
        "resident_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "p50_ms": ordered[len(ordered) // 2],
        "p99_ms": ordered[int(0.99 * (len(ordered) - 1))],
        "disk_mb": sum(path.stat().st_size for path in store.rglob("*") if path.is_file()) / 1e6,
        "operations": load.operations,
        "failed": load.failed,
    }


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
    """Runs the load and prints the first and the last sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--engine", choices=("file", "chdb"), default="file")
    parser.add_argument("--backup-minutes", type=float, default=10.0)
    given = parser.parse_args()
    out = OUT / given.engine
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        with running(Path(folder), HashEncoder(), store=f"{given.engine}://{store}") as (client, server):
            client.ingest("soak", *(document(f"d{n}", f"Fact {n}.", group=str(n % 10)) for n in range(KEYS)))
            address = f"127.0.0.1:{server.port}"
            load = Load(client, address, Path(folder) / "backups", 60 * given.backup_minutes)
            threads = [threading.Thread(target=work) for work in (load.write, load.read, load.read, load.back_up)]
            for thread in threads:
                thread.start()
            began, seconds = time.monotonic(), 60 * given.minutes
            while (elapsed := time.monotonic() - began) < seconds:
                time.sleep(min(max(1.0, seconds / 500), max(0.0, seconds - elapsed)))
                rows.append({"seconds": time.monotonic() - began, **sample(load, store)})
            load.stop.set()
            for thread in threads:
                thread.join()
    with (out / "samples.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["seconds", *QUANTITIES])
        table.writeheader()
        table.writerows(rows)
    for name in QUANTITIES:
        (out / f"{name}.svg").write_text(plot(rows, name))
    for moment, row in (("first", rows[len(rows) // 4]), ("last", rows[-1])):
        print(moment, {name: round(value, 1) for name, value in row.items()})


if __name__ == "__main__":
    main()
