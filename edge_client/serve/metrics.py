"""What /metrics shows, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from edge_client.events import Finished

FIRST_TOKEN_BUCKETS_S = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
SPEED_BUCKETS = (5, 10, 20, 40, 80, 120, 160, 240, 320)
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """Counts of one server. Thread-safe.

    running, waiting: return numbers of answers. batch_sizes: the decoder's steps by their number of answers.
    """

    def __init__(
        self, running: Callable[[], int], waiting: Callable[[], int], batch_sizes: Mapping[int, int]
    ) -> None:
        self._registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._requests = counter("edge_http_requests", "Requests by route and status.", ["route", "status"])
        self._answers = counter("edge_answers", "Answers by how they ended.", ["reason"])
        self._tokens = counter("edge_tokens", "Tokens: prompt, reused, generated.", ["kind"])
        self._recalls = counter("edge_recalls", "Chunks that recalled, by state.", ["state"])
        text = "From the turn to the first token, recall included."
        self._first = histogram("edge_first_token_seconds", text, buckets=FIRST_TOKEN_BUCKETS_S)
        text = "Of an answer after its first token."
        self._speed = histogram("edge_tokens_per_second", text, buckets=SPEED_BUCKETS)
        gauge("edge_answers_running", "Answers being computed.").set_function(running)
        gauge("edge_answers_waiting", "Answers in the queue.").set_function(waiting)
        registry.register(_Steps(batch_sizes))

    def request(self, route: Any, status: int) -> None:
        """A response begins. route: the router's, a template, so that names stay few; None: refused, or the page."""
        self._requests.labels(getattr(route, "path", "") or "other", str(status)).inc()

    def answered(self, finished: Finished) -> None:
        """An answer is complete."""
        s = finished.statistics
        self._answers.labels(finished.reason).inc()
        self._tokens.labels("prompt").inc(s.prompt_tokens)
        self._tokens.labels("reused").inc(s.reused_tokens)
        self._tokens.labels("generated").inc(s.generated_tokens)
        for state, number in s.states.items():
            self._recalls.labels(state).inc(number)
        if s.generated_tokens:
            self._first.observe(s.first_token_ms / 1e3)
        if s.tokens_per_s:
            self._speed.observe(s.tokens_per_s)

    def left(self) -> None:
        """The client hung up before the answer was complete."""
        self._answers.labels("disconnected").inc()

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


class _Steps(Collector):
    def __init__(self, batch_sizes: Mapping[int, int]) -> None:
        self._batch_sizes = batch_sizes

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Steps by batch size."""
        steps = CounterMetricFamily(
            "edge_decoder_steps",
            "Decoding steps by the number of answers they served.",
            labels=["batch_size"],
        )
        for size, number in sorted(dict(self._batch_sizes).items()):
            steps.add_metric([str(size)], number)
        yield steps
