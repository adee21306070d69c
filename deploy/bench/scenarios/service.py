"""The retrieval service on each store: questions a second with five payloads each, against an echo and peers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from pydantic import Field

from deploy.bench import results
from deploy.bench.processes import side_process
from deploy.bench.scenario import (
    BUILD,
    Keys,
    Scenario,
    ScenarioFailed,
    Settings,
    Sheet,
    directions,
    figure,
    round_figure,
)
from deploy.bench.service.data import PAYLOAD_BYTES, Collection, K
from deploy.bench.service.front import serve_echo, serve_searcher
from deploy.bench.service.measuring import STAGES, Asking, Subject, measured
from deploy.bench.service.peers import PEERS, Peer
from deploy.bench.service.stores import fill, serve_store, url_of

FOLDER, PARTS = BUILD / "service", BUILD / "service-parts"


class ServiceSettings(Settings):
    """What this scenario can be told.

    stores, peers: which to measure, by name. callers: devices that ask at the same time. seconds: of one round.
    resume: go on where an interrupted run was, with the stores and peers that it has measured.
    """

    references: int = Field(default=100_000, ge=100)
    dimension: int = Field(default=1024, ge=8)
    queries: int = Field(default=500, ge=10)
    callers: int = Field(default=8, ge=1)
    seconds: float = Field(default=2.0, gt=0)
    stores: tuple[str, ...] = ("file", "chdb")
    peers: tuple[str, ...] = tuple(peer.name for peer in PEERS)
    resume: bool = False

    @property
    def collection(self) -> Collection:
        """What everything is filled with."""
        return Collection(self.references, self.dimension, self.queries)


def measure(settings: ServiceSettings) -> Keys:
    """Everything one after the other, each in turn with the echo; the best store's keys stand at the top too."""
    collection = settings.collection
    asking = Asking(settings.callers, settings.seconds, settings.rounds, settings.warm_up)
    if not settings.resume:
        shutil.rmtree(PARTS, ignore_errors=True)
    # What is taken from an earlier run must have been measured in the same way.
    size = (
        f"{collection.references}x{collection.dimension}-{settings.queries}q-{settings.callers}c"
        f"-{settings.rounds}x{settings.seconds:g}s"
    )
    stores: dict[str, Keys] = {}
    peers: dict[str, Keys] = {}
    with side_process(serve_echo) as echo:
        for engine in settings.stores:
            url = url_of(engine, FOLDER)
            subject = Subject(
                engine, collection, FOLDER / engine, fill, (url, collection),
                partial(side_process, serve_store, url, collection.dimension, {}), is_store=True,
            )  # fmt: skip
            stores[engine] = _kept(f"{engine}-{size}", partial(measured, subject, asking, echo))
        for peer in _peers(settings.peers):
            folder = FOLDER / peer.name
            subject = Subject(
                peer.name, collection, folder, peer.fill, (folder, collection),
                partial(side_process, serve_searcher, peer.opened, folder, collection),
            )  # fmt: skip
            measure_it = partial(measured, subject, asking, echo)
            peers[peer.name] = _if_it_can(peer, partial(_kept, f"{peer.name}-{size}", measure_it))
    best = max(stores, key=lambda engine: float(stores[engine]["echo_ratio"]))
    # Each against the echo of its own rounds: a machine that drifts drifts between stores and peers, too.
    ahead = {
        name: float(stores[best]["echo_ratio"] / keys["echo_ratio"])
        for name, keys in peers.items()
        if keys.get("echo_ratio")
    }
    return {
        "references": settings.references, "dim": settings.dimension, "payload_bytes": PAYLOAD_BYTES, "k": K,
        "callers": settings.callers, "stores": stores, "peers": peers, "echo": stores[best]["echo"],
        "best_store": best, "ratio": stores[best]["echo_ratio"], "recall_at_5": stores[best]["recall_at_5"],
        "times_a_peer": {name: round_figure(times) for name, times in ahead.items()},
    }  # fmt: skip


def _kept(name: str, measure_it: Callable[[], Keys]) -> Keys:
    """A store's or peer's keys, from the interrupted run if it has them."""
    path = PARTS / f"{name}.json"
    if not path.is_file():
        results.write(measure_it(), path)
    found: Keys = json.loads(path.read_text(encoding="utf-8"))
    return found


def _peers(names: Sequence[str]) -> list[Peer]:
    known = {peer.name: peer for peer in PEERS}
    if unknown := set(names) - set(known):
        raise ScenarioFailed(f"no peer {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return [known[name] for name in names]


def _if_it_can(peer: Peer, measure_it: Callable[[], Keys]) -> Keys:
    """A peer that cannot do it is named with the reason, and the others go on."""
    if not peer.installed:
        return {"missing": f"{peer.module} is not installed: pip install '.[bench-peers]'"}
    try:
        return measure_it()
    except (ScenarioFailed, OSError, grpc.RpcError) as error:
        said = str(error).strip() or type(error).__name__
        return {"missing": f"failed: {said.splitlines()[-1]}"}


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a store or peer, the echo last; then where the service's time goes."""
    rows = []
    for kind in ("stores", "peers"):
        for name, keys in result[kind].items():
            label = f"{name}://" if kind == "stores" else name
            if "missing" in keys:
                rows.append((label, *["–"] * 8))
                continue
            rows.append((
                label, figure(keys, "recall_at_5"), figure(keys, "qps"), figure(keys, "p50_ms"), figure(keys, "p99_ms"),
                figure(keys["alone"], "p50_ms"), figure(keys, "echo_ratio"), figure(keys, "cpu_ratio"),
                figure(keys, "fill_s"),
            ))  # fmt: skip
    echo = result["echo"]
    rows.append(
        ("echo", "–", figure(echo, "qps"), figure(echo, "p50_ms"), figure(echo, "p99_ms"), "–", "1", "1", "–")
    )
    columns = (
        "",
        "recall@5",
        "questions/s",
        "p50, ms",
        "p99, ms",
        "alone p50, ms",
        "of the echo",
        "by CPU",
        "filled in, s",
    )
    title = (
        f"{result['references']:,} references x {result['dim']}, {result['k']} payloads of"
        f" {result['payload_bytes']:,} bytes an answer, {result['callers']} callers"
    )
    note = (
        "The requests that devices send: 50 candidates by vector put in order by words, the first five returned with"
        " text and payload. Clustered synthetic vectors, recall by vector alone against exact neighbours, answers over"
        " TCP on loopback with server and client on the same cores. The echo sends the same bytes from the same event"
        " loop without looking at the question; its ratio is the median of the rounds', its row the best store's. Peers"
        " answer behind the same gRPC front. Alone: one caller. By CPU: the time of all cores for an echo,"
        " client and server together, over that for an answer of this."
    )
    absent = [f"{name}: {keys['missing']}." for name, keys in result["peers"].items() if "missing" in keys]
    note = " ".join([note, *absent])
    stages = [
        (
            f"{name}://",
            *(f"{keys['stages_ms'][s[:-3]]:.3g}" for s in STAGES),
        )
        for name, keys in result["stores"].items()
    ]
    names = ("", "queue", "search", "rank", "fetch", "total")
    filtered = [
        (f"{name}://", share, *(figure(speed, key) for key in ("qps", "p50_ms", "p99_ms")))
        for name, keys in result["stores"].items()
        for share, speed in (("all", keys), *keys["filtered"].items())
    ]
    return [
        Sheet(title, columns, rows, note),
        Sheet("Server times of one caller, ms (medians)", names, stages),
        Sheet("With a filter", ("", "pass it", "questions/s", "p50, ms", "p99, ms"), filtered),
    ]


SCENARIO = Scenario(
    name="service",
    summary="Retrieval with its payloads over gRPC, against an echo of the same bytes and embedded vector databases.",
    settings=ServiceSettings,
    measure=measure,
    promised=("stores", "peers", "echo", "ratio", "recall_at_5", "best_store"),
    directions=directions(
        more="qps echo_ratio",
        less="p50_ms",
    ),
    sheets=sheets,
    quick={"rounds": 2, "references": 3000, "queries": 100, "seconds": 1.0},
)
