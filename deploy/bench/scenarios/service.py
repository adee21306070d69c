"""The retrieval service on each store: questions a second with five payloads each, against an echo and peers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from pydantic import Field

from deploy.bench.intervals import median_interval, ratio_interval
from deploy.bench.load import Load
from deploy.bench.plots import drawing
from deploy.bench.rounds import interleave
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
from deploy.bench.service.data import PAYLOAD_BYTES, Collection, K
from deploy.bench.service.filling import fill_apart
from deploy.bench.service.front import serve_echo, serve_searcher
from deploy.bench.service.load import answers_of, load, recall_of, requests_of
from deploy.bench.service.peers import PEERS, Peer
from deploy.bench.service.stores import fill, serve_store, url_of
from deploy.bench.side_process import side_process
from memory_model.words import query_words

FOLDER = BUILD / "service"
_STAGES = ("queue_us", "search_us", "rank_us", "fetch_us", "total_us")


class ServiceSettings(Settings):
    """What this scenario can be told.

    stores, peers: which to measure, by name. callers: devices that ask at the same time. seconds: of one round.
    """

    references: int = Field(default=100_000, ge=100)
    dimension: int = Field(default=1024, ge=8)
    queries: int = Field(default=500, ge=10)
    callers: int = Field(default=8, ge=1)
    seconds: float = Field(default=2.0, gt=0)
    stores: tuple[str, ...] = ("file", "chdb")
    peers: tuple[str, ...] = tuple(peer.name for peer in PEERS)

    @property
    def collection(self) -> Collection:
        """What everything is filled with."""
        return Collection(self.references, self.dimension, self.queries)


def measure(settings: ServiceSettings) -> Keys:
    """Everything one after the other, each in turn with the echo; the best store's keys stand at the top too."""
    collection = settings.collection
    echo_rounds: list[Load] = []
    stores: dict[str, Keys] = {}
    peers: dict[str, Keys] = {}
    with side_process(serve_echo) as echo:
        for engine in settings.stores:
            stores[engine] = _measured(
                engine, settings, collection, echo, echo_rounds, fill, (url_of(engine, FOLDER),),
                partial(side_process, serve_store, url_of(engine, FOLDER), collection.dimension, {}), words=True,
            )  # fmt: skip
        for peer in _peers(settings.peers):
            if not peer.installed:
                peers[peer.name] = {
                    "missing": f"{peer.module} is not installed: pip install '.[bench-peers]'"
                }
                continue
            peers[peer.name] = _measured(
                peer.name, settings, collection, echo, echo_rounds, peer.fill, (FOLDER / peer.name, collection),
                partial(side_process, serve_searcher, peer.opened, FOLDER / peer.name, collection),
            )  # fmt: skip
    best = max(stores, key=lambda engine: float(stores[engine]["echo_ratio"]))
    ahead = {name: float(stores[best]["qps"] / keys["qps"]) for name, keys in peers.items() if "qps" in keys}
    return {
        "references": settings.references, "dim": settings.dimension, "payload_bytes": PAYLOAD_BYTES, "k": K,
        "callers": settings.callers, "stores": stores, "peers": peers, "echo": _speed(echo_rounds),
        "best_store": best, "ratio": stores[best]["echo_ratio"], "recall_at_5": stores[best]["recall_at_5"],
        "times_a_peer": {name: round_figure(times) for name, times in ahead.items()},
    }  # fmt: skip


def _peers(names: Sequence[str]) -> list[Peer]:
    known = {peer.name: peer for peer in PEERS}
    if unknown := set(names) - set(known):
        raise ScenarioFailed(f"no peer {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return [known[name] for name in names]


def _measured(
    name: str, settings: ServiceSettings, collection: Collection, echo: str, echo_rounds: list[Load],
    write: Callable[..., None], arguments: tuple[Any, ...], serving: Callable[[], AbstractContextManager[str]],
    *, words: bool = False,
) -> Keys:  # fmt: skip
    """One store's or peer's keys: filled, asked for recall, then rounds in turn with the echo; removed at the end."""
    folder = FOLDER / name
    with _empty(folder):
        given = arguments if isinstance(arguments[-1], Collection) else (*arguments, collection)
        fill_apart(name, collection.references, write, *given)
        with serving() as address:
            requests = requests_of(collection)
            answers = answers_of(address, requests)
            variants = {
                "echo": lambda _: load(echo, requests, settings.callers, settings.seconds),
                name: lambda _: load(address, requests, settings.callers, settings.seconds),
                "alone": lambda _: load(address, requests, 1, settings.seconds / 2),
            }
            if words:
                with_words = [
                    request + asked for request, asked in zip(requests, _words(collection), strict=True)
                ]
                variants["words"] = lambda _: load(address, with_words, settings.callers, settings.seconds)
            samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label=name)
            resident = sum(_resident(process) for process in psutil.Process().children(recursive=True)[-1:])
        echo_rounds += samples["echo"]
        keys: Keys = {
            "references": collection.references, "dim": collection.dimension,
            "recall_at_5": round_figure(recall_of(answers, collection.neighbours)),
            "disk_bytes": sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()),
            "resident_bytes": resident,
            "alone": _speed(samples["alone"]),
            "errors": sum(sum(load.errors.values()) for rounds in samples.values() for load in rounds),
        }  # fmt: skip
        if words:
            keys["with_words"] = _speed(samples["words"])
            times = [answer.server_times for answer in answers]
            keys["stages_ms"] = {
                s[:-3]: round_figure(median(getattr(t, s) for t in times) / 1e3) for s in _STAGES
            }
        ratio = ratio_interval(
            [s.answered_per_s for s in samples[name]], [s.answered_per_s for s in samples["echo"]]
        )
        return with_intervals({**keys, **_speed(samples[name])}, echo_ratio=ratio)


@contextmanager
def _empty(folder: Path) -> Iterator[None]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _words(collection: Collection) -> Iterator[bytes]:
    """The field of a request that names the words of its query: a sentence about some reference."""
    from protos.memory.v1 import retrieval_pb2

    for number in range(collection.queries):
        hashes = query_words(" ".join(collection.text(number).split()[:40]))
        yield retrieval_pb2.RetrieveRequest(query_words=[{"hashes": hashes}]).SerializeToString()


def _speed(rounds: Sequence[Load]) -> Keys:
    """Medians over rounds."""
    return with_intervals(
        {
            f"p{percent}_ms": round_figure(median(load.latencies.percentile_ms(percent) for load in rounds))
            for percent in (50, 99)
        },
        qps=median_interval([load.answered_per_s for load in rounds]),
    )


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a store or peer, the echo last; then where the service's time goes."""
    rows = []
    for kind in ("stores", "peers"):
        for name, keys in result[kind].items():
            label = f"{name}://" if kind == "stores" else name
            if "missing" in keys:
                rows.append((label, *["–"] * 6))
                continue
            rows.append((
                label, figure(keys, "recall_at_5"), figure(keys, "qps"), figure(keys, "p50_ms"), figure(keys, "p99_ms"),
                figure(keys["alone"], "p50_ms"), figure(keys, "echo_ratio"),
            ))  # fmt: skip
    echo = result["echo"]
    rows.append(("echo", "–", figure(echo, "qps"), figure(echo, "p50_ms"), figure(echo, "p99_ms"), "–", "1"))
    columns = ("", "recall@5", "questions/s", "p50, ms", "p99, ms", "alone p50, ms", "of the echo")
    title = (
        f"{result['references']:,} references x {result['dim']}, {result['k']} payloads of"
        f" {result['payload_bytes']:,} bytes an answer, {result['callers']} callers"
    )
    note = (
        "Clustered synthetic vectors, recall against exact neighbours, answers over TCP on loopback with server and"
        " client on the same cores. The echo sends the same bytes without looking at the question; its ratio is the"
        " median of the rounds'. Peers answer behind the same gRPC front. Alone: one caller."
    )
    stages = [
        (
            f"{name}://",
            *(f"{keys['stages_ms'][s[:-3]]:.3g}" for s in _STAGES),
            figure(keys["with_words"], "qps"),
        )
        for name, keys in result["stores"].items()
    ]
    names = ("", "queue", "search", "rank", "fetch", "total", "questions/s with words")
    return [
        Sheet(title, columns, rows, note),
        Sheet("Server times of one caller, ms (medians)", names, stages),
    ]


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Bars of questions a second."""
    named = {"echo": result["echo"], **result["stores"], **result["peers"]}
    named = {name: keys for name, keys in named.items() if "qps" in keys}
    with drawing(path, height=0.6 + 0.35 * len(named)) as axes:
        bars = axes.barh(list(named)[::-1], [keys["qps"] for keys in named.values()][::-1], height=0.6)
        axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=7)
        axes.set_xlabel("questions answered a second, five payloads each")


SCENARIO = Scenario(
    name="service",
    summary="Retrieval with its payloads over gRPC, against an echo of the same bytes and embedded vector databases.",
    settings=ServiceSettings,
    measure=measure,
    promised=("stores", "peers", "echo", "ratio", "recall_at_5", "best_store"),
    sheets=sheets,
    plot=plot,
)
