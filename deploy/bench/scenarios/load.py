"""Latency of a retrieval service under load: at fixed rates (open loop) and with clients that wait (closed loop)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from deploy.bench.knowledge import prompts, service_for
from deploy.bench.latency import Latencies
from deploy.bench.load import Load, Stages, closed_loop, open_loop
from deploy.bench.plots import drawing
from deploy.bench.scenario import Keys, Scenario, ScenarioFailed, Settings, Sheet
from edge_client.wire.channel import ChannelSettings, open_async_channel
from edge_client.wire.retrieval import Limits, RetrieveTemplate, joined
from memory_model.bundle import Bundle
from protos.memory.v1 import retrieval_pb2_grpc

QUESTIONS = 16
STAGES = ("network", "queue", "search", "fetch")


class LoadSettings(Settings):
    """rates_per_s: open loops. clients: closed loops. seconds: of each."""

    rates_per_s: tuple[float, ...] = (10, 40)
    clients: tuple[int, ...] = (1, 4)
    seconds: float = Field(default=10, gt=0, le=3600)
    deadline_s: float = Field(default=10, gt=0)
    knowledge_base: str = "default"
    k: int = Field(default=5, ge=1)


def measure(settings: LoadSettings) -> Keys:
    """Every load once, the smallest first, each after a second of warm-up; memories are sent whole."""
    bundle = Bundle.open(settings.bundle)
    vectors = bundle.embedder(threads=settings.threads).embed(prompts(bundle, QUESTIONS, 128))
    with service_for(settings, bundle) as address:
        loads = asyncio.run(_loads(settings, bundle, address, vectors))
    return {"target": settings.target or "loopback", "k": settings.k, **loads}


async def _loads(settings: LoadSettings, bundle: Bundle, address: str, vectors: np.ndarray) -> Keys:
    template = RetrieveTemplate(settings.knowledge_base, bundle.identity, bundle.manifest.embedder_id)
    requests = [template.requests(vector[None], Limits(), k=settings.k) for vector in vectors]
    async with open_async_channel(ChannelSettings(address)) as channel:
        stub = retrieval_pb2_grpc.RetrievalStub(channel)
        questions = itertools.cycle(requests)

        async def call(number: int) -> Stages:
            (request,) = next(questions)
            began = time.perf_counter()
            answer = joined([request], [await stub.Retrieve(request, timeout=settings.deadline_s)])
            took = time.perf_counter() - began
            if not any(answer.hits):
                raise LookupError("nothing found")
            server, search, fetch = (ms / 1e3 for ms in (answer.server_ms, answer.search_ms, answer.fetch_ms))
            times = max(took - server, 0.0), max(server - search - fetch, 0.0), search, fetch
            return dict(zip(STAGES, times, strict=True))

        if not (tried := await closed_loop(call, clients=1, seconds=1)).latencies.count:
            raise ScenarioFailed(f"{address} answered no retrieval: {dict(tried.errors)}")
        closed = [
            _row(await closed_loop(call, clients=c, seconds=settings.seconds), clients=c)
            for c in sorted(settings.clients)
        ]
        opened = [
            _row(await open_loop(call, per_s=rate, seconds=settings.seconds))
            for rate in sorted(settings.rates_per_s)
        ]
    return {"closed": closed, "open": opened}


def _row(load: Load, **more: Any) -> Keys:
    return {**more, **load.summary()}


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a load."""
    names = ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms")
    columns = ("load", "answered/s", *names, "sent late, p99 ms", *(f"{s}, p50 ms" for s in STAGES), "errors")
    rows = []
    for row in result["closed"] + result["open"]:
        label = _label(row)
        late = row["lateness"].get("p99_ms")
        rows.append(
            (
                label, f"{row['answered_per_s']:.4g}", *(_ms(row["latency"].get(n)) for n in names), _ms(late),
                *(_ms(row["stages"].get(s, {}).get("p50_ms")) for s in STAGES),
                ", ".join(f"{name} x{count}" for name, count in row["errors"].items()) or "none",
            )
        )  # fmt: skip
    note = (
        f"Retrievals of {result['k']} memories with their payloads. Latency at a fixed rate counts from when a call was"
        " due. Network: the call without the server's own time; queue: what searching and fetching leave of that. The"
        " client takes its share of this machine."
    )
    return [Sheet(f"retrieval, {result['target']}", columns, rows, note)]


def _label(row: Mapping[str, Any]) -> str:
    if "clients" not in row:
        return f"{row['offered_per_s']:g}/s"
    return f"{row['clients']} client{'s' * (row['clients'] != 1)}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Latency by percentile, the axis stretched towards the last ones."""
    with drawing(path) as axes:
        for row in result["closed"] + result["open"]:
            if "hdr" not in row["latency"]:
                continue
            latencies = Latencies()
            latencies.merge(row["latency"]["hdr"])
            percents, times = zip(*latencies.curve(), strict=True)
            label = _label(row)
            style = "--" if "clients" in row else "-"
            axes.plot([1 / (1 - p / 100) for p in percents], times, style, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = (1, 2, 10, 100, 1000)
        axes.set_xticks(ticks, [f"{100 - 100 / t:g} %" for t in ticks])
        axes.set_xlabel("of the calls take at most")
        axes.set_ylabel("ms")
        axes.legend(frameon=False, fontsize=7)


SCENARIO = Scenario(
    name="load",
    summary="Retrieval under load, at fixed rates and with clients that wait for each answer.",
    settings=LoadSettings,
    measure=measure,
    promised=("open", "closed"),
    sheets=sheets,
    plot=plot,
)
