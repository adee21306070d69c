"""One store or peer measured: filled, asked for recall, then loaded in turn with the echo."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from deploy.bench.intervals import interleave, median_interval, percentile, ratio_interval
from deploy.bench.processes import fill_apart
from deploy.bench.scenario import Keys, round_figure, with_intervals
from deploy.bench.service.data import SHARES, Collection
from deploy.bench.service.load import Load, answers_of, load, recall_of, requests_of

STAGES = ("queue_us", "search_us", "rank_us", "fetch_us", "total_us")


@dataclass(frozen=True)
class Asking:
    """How it is loaded: devices that ask at the same time, seconds of a round, rounds after those of warm-up."""

    callers: int
    seconds: float
    rounds: int
    warm_up: int


@dataclass(frozen=True)
class Subject:
    """A store or a peer, and what it is filled with. folder: that it fills and that is removed at the end.

    fill(*arguments, progress) writes the collection; serving: a server that answers from it. is_store: whether it
    answers filtered requests too, and tells its times.
    """

    name: str
    collection: Collection
    folder: Path
    fill: Callable[..., None]
    arguments: tuple[Any, ...]
    serving: Callable[[], AbstractContextManager[str]]
    is_store: bool = False


def measured(subject: Subject, asking: Asking, echo: str) -> Keys:
    """Its keys: filled, asked for recall, then rounds in turn with the echo at this address; removed at the end."""
    name, collection, callers, seconds = subject.name, subject.collection, asking.callers, asking.seconds
    with _empty(subject.folder):
        began = time.perf_counter()
        fill_apart(name, collection.references, subject.fill, *subject.arguments)
        fill_s = time.perf_counter() - began
        with subject.serving() as address:
            requests = requests_of(collection)
            near = answers_of(address, requests_of(collection, words=False))
            answers = answers_of(address, requests)
            cpu_ms: dict[str, list[float]] = {"echo": [], name: []}

            def weighed(what: str, where: str) -> Load:
                before = _cpu_s()
                found = load(where, requests, callers, seconds)
                cpu_ms[what].append(1e3 * (_cpu_s() - before) / max(1, len(found.latencies_s)))
                return found

            variants = {
                "echo": lambda _: weighed("echo", echo),
                name: lambda _: weighed(name, address),
                "alone": lambda _: load(address, requests, 1, seconds / 2),
            }
            for share in SHARES if subject.is_store else ():
                variants[f"1/{share}"] = partial(
                    _loaded, address, requests_of(collection, share), callers, seconds
                )
            samples = interleave(variants, asking.rounds, warm_up=asking.warm_up, label=name)
            resident = sum(_resident(process) for process in psutil.Process().children(recursive=True)[-1:])
        keys: Keys = {
            "references": collection.references, "dim": collection.dimension,
            "recall_at_5": round_figure(recall_of(near, collection.neighbours)),
            "disk_bytes": sum(path.stat().st_blocks * 512 for path in subject.folder.rglob("*") if path.is_file()),
            "resident_bytes": resident, "fill_s": round_figure(fill_s), "echo": speed_of(samples["echo"]),
            "alone": speed_of(samples["alone"]), "cpu_ms": round_figure(median(cpu_ms[name])),
            "cpu_ratio": round_figure(median(cpu_ms["echo"]) / median(cpu_ms[name])),
            "errors": sum(sum(load.errors.values()) for rounds in samples.values() for load in rounds),
        }  # fmt: skip
        if subject.is_store:
            keys["filtered"] = {f"1/{share}": speed_of(samples[f"1/{share}"]) for share in SHARES}
            times = [answer.server_times for answer in answers]
            keys["stages_ms"] = {
                s[:-3]: round_figure(median(getattr(t, s) for t in times) / 1e3) for s in STAGES
            }
        ratio = ratio_interval(
            [s.answered_per_s for s in samples[name]], [s.answered_per_s for s in samples["echo"]]
        )
        return with_intervals({**keys, **speed_of(samples[name])}, echo_ratio=ratio)


def _loaded(address: str, requests: Sequence[bytes], callers: int, seconds: float, _: int) -> Load:
    return load(address, requests, callers, seconds)


@contextmanager
def _empty(folder: Path) -> Iterator[None]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cpu_s() -> float:
    """Of this process, which asks, and of all servers: what answers cost together, also on a busy machine."""
    me = psutil.Process()
    times = (process.cpu_times() for process in (me, *me.children(recursive=True)))
    return sum(float(spent.user + spent.system) for spent in times)


def _resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def speed_of(rounds: Sequence[Load]) -> Keys:
    """Throughput and the latencies of all rounds together; p99_ms is None with too few answers to tell."""
    latencies_ms = [1e3 * seconds for load in rounds for seconds in load.latencies_s]
    p99 = percentile(latencies_ms, 99)
    return with_intervals(
        {"p99_ms": p99 and round_figure(p99)},
        p50_ms=median_interval([1e3 * median(load.latencies_s or [0.0]) for load in rounds]),
        qps=median_interval([load.answered_per_s for load in rounds]),
    )
