"""What the service counts and measures, for Prometheus, on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    make_wsgi_app,
    start_http_server,
)

from memory3.errors import InvalidInput
from protos.memory.v1 import retrieval_pb2

REGISTRY = CollectorRegistry()
for _collector in (ProcessCollector, PlatformCollector, GCCollector):
    _collector(registry=REGISTRY)

_OURS: Any = {"namespace": "memory_service", "registry": REGISTRY}
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STAGE_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
_STAGES = ("search", "fetch", "total", "queue", "rank")

CALLS = Counter("calls", "Finished calls", ["method", "code"], **_OURS)
CALL_SECONDS = Histogram("call_seconds", "Time of calls and streams", ["method"], buckets=_CALL_BUCKETS, **_OURS)
UNDER_WAY = Gauge("calls_under_way", "Calls being answered", ["method"], **_OURS)
WAITING = Gauge("retrievals_waiting", "Retrievals that wait for a thread or are in the store", **_OURS)
DOCUMENTS = Counter("documents", "Answers to documents of Ingest", ["outcome"], **_OURS)
INGESTING_BYTES = Gauge("ingesting_bytes", "Memory of documents on their way into the store", **_OURS)
REFUSED = Counter("refused", "Calls and batches refused by a limit", ["reason"], **_OURS)
READY = Gauge("ready", "1 when retrieval is served", **_OURS)
STORE_UP = Gauge("store_up", "1 when the store answers; NaN until it is asked", **_OURS)
DISK_FREE_BYTES = Gauge("disk_free_bytes", "Free space where the store is; NaN: not known, or on a server", **_OURS)
for _gauge in (STORE_UP, DISK_FREE_BYTES):
    _gauge.set(math.nan)  # until the store is looked at: 0 would raise an alert at every start
_STAGE_SECONDS = Histogram("retrieval_stage_seconds", "Stages of retrieval", ["stage"], buckets=_STAGE_BUCKETS, **_OURS)
_OF_STAGES = {stage: _STAGE_SECONDS.labels(stage) for stage in _STAGES}
_STUCK_AFTER_S = 5.0


def observe_retrieval(times: retrieval_pb2.ServerTimes) -> None:
    """The stages of one retrieval, as its answer has them."""
    for stage, histogram in _OF_STAGES.items():
        histogram.observe(getattr(times, f"{stage}_us") / 1e6)


_metrics = make_wsgi_app(REGISTRY)


@contextlib.contextmanager
def metrics_port(listen: str, loop: asyncio.AbstractEventLoop) -> Iterator[int]:
    """The HTTP server that Prometheus (`/metrics`) and the kubelet (`/ready`, `/live`) ask, in a thread of its own.

    listen: host:port; port 0 takes a free one, which is yielded. loop: of the service. `/ready`: what gRPC's health
    says. `/live`: whether the event loop turns, whatever the store does. Raises InvalidInput without a port.
    """

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path == "/ready":
            good = REGISTRY.get_sample_value("memory_service_ready") == 1
        elif path == "/live":
            turned = threading.Event()
            loop.call_soon_threadsafe(turned.set)
            good = turned.wait(_STUCK_AFTER_S)
        else:
            return _metrics(environ, start)
        start("200 OK" if good else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if good else b"failed\n"]

    host, _, port = listen.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry=REGISTRY)
    except (OSError, OverflowError) as error:  # the latter of a port above 65535
        raise InvalidInput(f"metrics_listen {listen}: {error}; name a free address") from error
    server.set_app(answer)
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()
