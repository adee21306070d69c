"""The retrieval service on each store: questions a second with five payloads each, against an echo and peers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any, Literal

import grpc
from pydantic import Field

from deploy.bench.intervals import interleave, median_interval, percentile, ratio_interval
from deploy.bench.processes import fill_apart, side_process
from deploy.bench.scenario import (
    BUILD,
    Keys,
    Scenario,
    ScenarioFailed,
    Settings,
    Sheet,
    figure,
    round_figure,
    with_intervals,
)
from deploy.bench.service.data import PAYLOAD_BYTES, SHARES, Collection, K
from deploy.bench.service.front import serve_echo, serve_searcher
from deploy.bench.service.load import Load, answers_of, filtering_requests, load, recall_of, requests_of
from deploy.bench.service.peers import PEERS, Peer
from deploy.bench.service.stores import fill, serve_store

FOLDER = BUILD / "service"
_WITH_FILTERS = "No two filters are alike. With filters: another caller sends some that match nearly everything."
STAGES = ("queue", "search", "rank", "fetch", "total")


class ServiceSettings(Settings):
    """stores, peers: which to measure, by name. callers: devices that ask at the same time. seconds: of one round.

    keep: what was filled stays in build/bench/service for the next run of this size.
    """

    references: int = Field(default=100_000, ge=100)
    dimension: int = Field(default=1024, ge=8)
    payload_bytes: int = Field(default=PAYLOAD_BYTES, ge=8, lt=1 << 20)
    queries: int = Field(default=500, ge=10)
    callers: int = Field(default=8, ge=1)
    seconds: float = Field(default=2.0, gt=0)
    stores: tuple[Literal["file", "chdb"], ...] = Field(default=("file", "chdb"), min_length=1)
    peers: tuple[str, ...] = tuple(PEERS)
    keep: bool = False


def measure(settings: ServiceSettings) -> Keys:
    """Everything one after the other, each in turn with the echo; the best store's keys stand at the top too."""
    if unknown := {*settings.peers} - {*PEERS}:
        raise ScenarioFailed(f"no peer {', '.join(sorted(unknown))}: there are {', '.join(PEERS)}")
    stores: dict[str, Keys] = {}
    peers: dict[str, Keys] = {}
    with side_process(serve_echo, settings.payload_bytes) as echo:
        for engine in settings.stores:
            stores[engine] = measured_store(engine, settings, echo)
        for name in settings.peers:
            peers[name] = if_it_can(PEERS[name], partial(measured_peer, name, settings, echo))
    best = max(stores, key=lambda engine: float(stores[engine]["echo_ratio"]))
    return {
        "references": settings.references,
        "dim": settings.dimension,
        "payload_bytes": settings.payload_bytes,
        "k": K,
        "callers": settings.callers,
        "stores": stores,
        "peers": peers,
        "echo": stores[best]["echo"],
        "best_store": best,
        "ratio": stores[best]["echo_ratio"],
        "recall_at_5": stores[best]["recall_at_5"],
    }


def measured(
    name: str,
    settings: ServiceSettings,
    echo: str,
    fill: Callable[..., None],
    serving: Callable[[Path], AbstractContextManager[str]],
    *,
    is_store: bool = False,
) -> Keys:
    """A store's or peer's keys: filled, queried for recall, then rounds in turn with the echo at this address.

    fill(folder, collection, progress) writes into a folder. serving: a server that answers from it. is_store: whether
    it answers filtered requests too, tells its times, and goes on where filling was broken off.
    """
    collection = Collection(
        settings.references, settings.dimension, settings.queries, payload_bytes=settings.payload_bytes
    )
    with _filled(
        name, settings, partial(fill_apart, name, collection.references, fill), collection, is_store
    ) as folder:
        others = set(active_children())
        with serving(folder) as address:
            (server,) = set(active_children()) - others
            near = answers_of(address, requests_of(collection, words=False))
            requests = requests_of(collection)
            answers = answers_of(address, requests)

            def asking(address: str, requests: Sequence[bytes], callers: int) -> Callable[[int], Load]:
                return lambda _: load(address, requests, callers, settings.seconds)

            variants = {
                "echo": asking(echo, requests, settings.callers),
                name: asking(address, requests, settings.callers),
                "alone": asking(address, requests, 1),
            }
            if is_store:
                for share in SHARES:
                    variants[f"1/{share}"] = asking(address, requests_of(collection, share), settings.callers)
                filters = filtering_requests(collection, SHARES[-1])
                variants["with filters"] = lambda _: load(
                    address, requests, settings.callers, settings.seconds, filters
                )
            samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label=name)
            memory_mb = memory_of(server)
        disk_mb = round(sum(file.stat().st_blocks for file in folder.rglob("*")) * 512 / 1e6)
    keys: Keys = {
        "references": collection.references,
        "dim": collection.dimension,
        "recall_at_5": round_figure(recall_of(near, collection.neighbours)),
        "echo": speed_of(samples["echo"]),
        "alone": speed_of(samples["alone"]),
        "memory_mb": memory_mb,
        "disk_mb": disk_mb,
        "errors": sum(sum(load.errors.values()) for rounds in samples.values() for load in rounds),
    }
    if is_store:
        keys["filtered"] = {f"1/{share}": speed_of(samples[f"1/{share}"]) for share in SHARES}
        keys["beside_filters"] = speed_of(samples["with filters"])
        times = [answer.server_times for answer in answers]
        keys["stages_ms"] = {s: round_figure(median(getattr(t, f"{s}_us") for t in times) / 1e3) for s in STAGES}
    speeds, echoed = ([s.answered_per_s for s in samples[of]] for of in (name, "echo"))
    return with_intervals({**keys, **speed_of(samples[name])}, echo_ratio=ratio_interval(speeds, echoed))


def measured_store(engine: str, settings: ServiceSettings, echo: str) -> Keys:
    """A store's keys."""

    def serving(folder: Path) -> AbstractContextManager[str]:
        return side_process(serve_store, f"{engine}://{folder}", settings.dimension)

    return measured(engine, settings, echo, partial(fill, engine), serving, is_store=True)


def measured_peer(name: str, settings: ServiceSettings, echo: str) -> Keys:
    """The same of a peer behind the echo's front."""
    peer = PEERS[name]
    return measured(name, settings, echo, peer.fill, partial(side_process, serve_searcher, peer.opened))


def speed_of(rounds: Sequence[Load]) -> Keys:
    """Throughput and the latencies of all rounds together; p99_ms is None with too few answers to tell."""
    latencies_ms = [1e3 * seconds for load in rounds for seconds in load.latencies_s]
    p99 = percentile(latencies_ms, 99)
    return with_intervals(
        {"p99_ms": p99 and round_figure(p99)},
        p50_ms=median_interval([1e3 * median(load.latencies_s or [0.0]) for load in rounds]),
        qps=median_interval([load.answered_per_s for load in rounds]),
    )


def if_it_can(peer: Peer, measure_it: Callable[[], Keys]) -> Keys:
    """A peer that cannot do it is named with the reason, and the others go on."""
    if not peer.installed:
        return {"missing": f"{peer.module} is not installed: `make bench-peers`"}
    try:
        return measure_it()
    except (ScenarioFailed, OSError, grpc.RpcError) as error:
        message = str(error).strip() or type(error).__name__
        return {"missing": f"failed: {message.splitlines()[-1]}"}


def memory_of(process: BaseProcess) -> int:
    """MB that a process has for itself, files that are mapped left out."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(encoding="ascii"))
    return round(int(found[1]) / 1000) if found else 0


@contextmanager
def _filled(
    name: str, settings: ServiceSettings, fill: Callable[[Path, Collection], None], collection: Collection, resume: bool
) -> Iterator[Path]:
    """A folder that has the collection, of an earlier run with `keep` or filled now."""
    folder = FOLDER / f"{name}-{settings.references}x{settings.dimension}x{settings.payload_bytes}"
    filled = folder.with_name(f"{folder.name}.filled")
    try:
        if not filled.exists():
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            fill(folder, collection)
            filled.touch()
        yield folder
    finally:
        if not settings.keep:
            filled.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a store or peer, the echo last; then where the service's time goes, and filters."""
    stores, speeds = result["stores"], ("qps", "p50_ms", "p99_ms")
    rows = [
        (
            name,
            figure(keys, "recall_at_5"),
            *(figure(keys, key) for key in speeds),
            figure(keys.get("alone", {}), "p50_ms"),
            figure(keys, "echo_ratio"),
            figure(keys, "memory_mb"),
            figure(keys, "disk_mb"),
        )
        for name, keys in ({f"{engine}://": keys for engine, keys in stores.items()} | result["peers"]).items()
    ]
    rows.append(("echo", "–", *(figure(result["echo"], key) for key in speeds), "–", "1", "–", "–"))
    columns = (
        "",
        "recall@5 ↑",
        "questions/s ↑",
        "p50, ms ↓",
        "p99, ms ↓",
        "alone p50, ms ↓",
        "relative to echo ↑",
        "memory, MB ↓",
        "disk, MB ↓",
    )
    title = (
        f"{result['references']:,} references x {result['dim']}, payloads of {result['payload_bytes']:,} bytes,"
        f" {result['callers']} callers"
    )
    note = (
        "Requests are like a device's: 50 candidates by vector are reranked by words, and five return with text and"
        " payload. Recall is by vector alone, over clustered synthetic vectors. The echo sends as many bytes."
    )
    absent = [f"{name}: {keys['missing']}." for name, keys in result["peers"].items() if "missing" in keys]
    stages = [(f"{name}://", *(f"{keys['stages_ms'][s]:.3g}" for s in STAGES)) for name, keys in stores.items()]
    filtered = [
        (f"{name}://", share, *(figure(speed, key) for key in speeds))
        for name, keys in stores.items()
        for share, speed in (("all", keys), *keys["filtered"].items(), ("all, with filters", keys["beside_filters"]))
    ]
    return [
        Sheet(title, columns, rows, " ".join([note, *absent])),
        Sheet("Server times of one caller, ms ↓ (medians)", ("", *STAGES), stages),
        Sheet("With a filter", ("", "match", "questions/s ↑", "p50, ms ↓", "p99, ms ↓"), filtered, _WITH_FILTERS),
    ]


SCENARIO = Scenario(
    name="service",
    of_model=False,
    summary="Retrieval with its payloads over gRPC, against an echo of the same bytes and embedded vector databases.",
    settings=ServiceSettings,
    measure=measure,
    sheets=sheets,
    quick={"rounds": 2, "references": 3000, "queries": 100, "seconds": 1.0},
)
