"""What the service counts and measures, for Prometheus, on a port of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIServer

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

from memory_model.errors import InvalidInput

REGISTRY = CollectorRegistry()
for _collector in (ProcessCollector, PlatformCollector, GCCollector):
    _collector(registry=REGISTRY)

_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STAGE_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)


def _named(name: str) -> str:
    return f"memory_service_{name}"


CALLS = Counter(_named("calls"), "Finished calls", ["method", "code"], registry=REGISTRY)
CALL_SECONDS = Histogram(
    _named("call_seconds"),
    "Time of calls, streams to their end",
    ["method"],
    buckets=_CALL_BUCKETS,
    registry=REGISTRY,
)
UNDER_WAY = Gauge(_named("calls_under_way"), "Calls being answered", ["method"], registry=REGISTRY)
WAITING = Gauge(_named("retrievals_waiting"), "Retrievals in the queue or in the store", registry=REGISTRY)
CACHE_BYTES = Gauge(_named("cache_bytes"), "What is remembered takes", ["cache"], registry=REGISTRY)
CACHE_LOOKUPS = Counter(_named("cache_lookups"), "Entries asked for", ["cache", "outcome"], registry=REGISTRY)
DOCUMENTS = Counter(_named("documents"), "Answers to documents of Ingest", ["outcome"], registry=REGISTRY)
REFUSED = Counter(_named("refused"), "Calls and batches refused by a limit", ["reason"], registry=REGISTRY)
READY = Gauge(_named("ready"), "1 when retrieval is served", registry=REGISTRY)
STORE_UP = Gauge(_named("store_up"), "1 when the store answers", registry=REGISTRY)
KNOWLEDGE_BASES = Gauge(_named("knowledge_bases"), "Knowledge bases by state", ["state"], registry=REGISTRY)
DISK_FREE_BYTES = Gauge(_named("disk_free_bytes"), "Free space where the store is", registry=REGISTRY)
WRITES_STOPPED = Gauge(_named("writes_stopped"), "1 while the disk is too full to write", registry=REGISTRY)
TENANT_USE = Gauge(_named("tenant_use"), "What a tenant holds", ["tenant", "quantity"], registry=REGISTRY)
TENANT_QUOTA = Gauge(_named("tenant_quota"), "What it may hold", ["tenant", "quantity"], registry=REGISTRY)


_STAGES = ("search", "fetch", "total", "queue", "rank")
_STAGE_SECONDS = Histogram(
    _named("retrieval_stage_seconds"),
    "Stages of a retrieval: " + ", ".join(_STAGES),
    ["stage"],
    buckets=_STAGE_BUCKETS,
    registry=REGISTRY,
)
_OF_STAGES = [_STAGE_SECONDS.labels(stage) for stage in _STAGES]


def observe_retrieval(search_us: int, fetch_us: int, total_us: int, queue_us: int, rank_us: int) -> None:
    """The stages of one retrieval, as its answer tells them to the client."""
    for stage, us in zip(_OF_STAGES, (search_us, fetch_us, total_us, queue_us, rank_us), strict=True):
        stage.observe(us / 1e6)


class MetricsPort:
    """The HTTP server that Prometheus (`/metrics`) and the kubelet (`/ready`) ask, in a thread of its own."""

    def __init__(self, listen: str) -> None:
        """listen: host:port; port 0 takes a free one. Raises InvalidInput when it cannot be opened."""
        host, _, port = listen.rpartition(":")
        try:
            self._server: WSGIServer
            self._server, self._thread = start_http_server(int(port), host.strip("[]"), registry=REGISTRY)
        except OSError as error:
            raise InvalidInput(f"metrics_listen {listen}: {error.strerror}; name a free address") from error
        self._server.set_app(_answer)
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_metrics = make_wsgi_app(REGISTRY)


def _answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """`/ready` says what gRPC's health says, for probes that know no TLS; everything else is the metrics."""
    if environ.get("PATH_INFO") != "/ready":
        return _metrics(environ, start)
    ready = REGISTRY.get_sample_value(_named("ready")) == 1
    start("200 OK" if ready else "503 Service Unavailable", [("Content-Type", "text/plain")])
    return [b"ready\n" if ready else b"not ready\n"]
