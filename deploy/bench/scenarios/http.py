"""What HTTP costs: the same questions through `edge-client serve` and through the SDK, answers of fixed length."""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from deploy.app_process import AppProcess
from deploy.bench.intervals import median_interval, ratio_interval
from deploy.bench.rounds import interleave
from deploy.bench.scenario import (
    Keys,
    Scenario,
    ScenarioFailed,
    Settings,
    Sheet,
    figure,
    subject,
    with_intervals,
)
from edge_client import EdgeModel, Token
from memory_model.bundle import Bundle

NOBODY = "127.0.0.1:1"
NEVER = -100.0
"""The bias that keeps an answer from ending by itself."""


class HttpSettings(Settings):
    """target: a service; without one both answer from the weights alone, which is all that HTTP can cost.

    answer_tokens: of every answer. knowledge_base: read where there is a target.
    """

    answer_tokens: int = Field(default=64, ge=8, le=1024)
    knowledge_base: str = "default"


@dataclass(frozen=True)
class Timed:
    """One answer as whoever waits for it sees it."""

    first_token_ms: float
    tokens_per_s: float


def measure(settings: HttpSettings) -> Keys:
    """Both in turn, a question of its own in each round, so that no cache is of use to either."""
    bundle = Bundle.open(settings.bundle)
    ends = set(bundle.tokenizer.stop_ids)
    recall = "exact" if settings.target else "off"
    service = settings.target or NOBODY
    options = {"threads": settings.threads, "provider": "cpu", "knowledge_base": settings.knowledge_base}
    environment = {f"EDGE_CLIENT_{name.upper()}": str(value) for name, value in options.items()}
    with (
        tempfile.TemporaryDirectory() as folder,
        EdgeModel.open(settings.bundle, service, memory=recall, **options) as model,
        AppProcess.start(
            Path(folder), settings.bundle, service, "--memory", recall, environment=environment
        ) as app,
    ):
        bias = dict.fromkeys(ends, NEVER)

        def by_sdk(number: int) -> Timed:
            began = time.perf_counter()
            session = model.session()
            events = session.send(_question(number), max_tokens=settings.answer_tokens, logit_bias=bias)
            return _timed(began, (True for event in events if isinstance(event, Token)), settings)

        def by_http(number: int) -> Timed:
            began = time.perf_counter()
            body = {
                "messages": [{"role": "user", "content": _question(number)}], "stream": True,
                "max_tokens": settings.answer_tokens, "logit_bias": bias, "logprobs": True,
            }  # fmt: skip
            return _timed(began, _tokens(app.port, body), settings)

        samples = interleave({"SDK": by_sdk, "HTTP": by_http}, settings.rounds, warm_up=settings.warm_up)
    first = {name: [s.first_token_ms for s in found] for name, found in samples.items()}
    speed = {name: [s.tokens_per_s for s in found] for name, found in samples.items()}
    keys: Keys = {
        "model": bundle.manifest.name, "precision": bundle.manifest.precision, "provider": "cpu",
        "threads": settings.threads, "answer_tokens": settings.answer_tokens, "recall": recall,
    }  # fmt: skip
    return with_intervals(
        keys,
        sdk_first_token_ms=median_interval(first["SDK"]),
        http_first_token_ms=median_interval(first["HTTP"]),
        sdk_tokens_per_s=median_interval(speed["SDK"]),
        http_tokens_per_s=median_interval(speed["HTTP"]),
        first_token_ratio=ratio_interval(first["SDK"], first["HTTP"]),
        ratio=ratio_interval(speed["HTTP"], speed["SDK"]),
    )


def _question(number: int) -> str:
    return f"Question {number + 1000}: what should somebody know who begins to keep bees, and in which order?"


def _timed(began: float, tokens: Iterator[bool], settings: HttpSettings) -> Timed:
    """From the call to the first token, and the speed of those after it. Raises ScenarioFailed for a short answer."""
    moments = [time.perf_counter() for _ in tokens]
    if len(moments) != settings.answer_tokens:
        raise ScenarioFailed(f"the answer has {len(moments)} tokens, not {settings.answer_tokens}")
    return Timed(1e3 * (moments[0] - began), (len(moments) - 1) / (moments[-1] - moments[0]))


def _tokens(port: int, body: Mapping[str, Any]) -> Iterator[bool]:
    """One True for each token of a streamed chat; with `logprobs` every token has an event."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        content = json.dumps(body)
        connection.request("POST", "/v1/chat/completions", content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ScenarioFailed(f"the app answered {answer.status}: {answer.read()[:500]!r}")
        for line in answer:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["logprobs"]:
                yield True
    finally:
        connection.close()


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One table."""
    rows = [
        ("SDK", figure(result, "sdk_first_token_ms"), figure(result, "sdk_tokens_per_s")),
        ("HTTP", figure(result, "http_first_token_ms"), figure(result, "http_tokens_per_s")),
        ("ratio", figure(result, "first_token_ratio"), figure(result, "ratio")),
    ]
    note = (
        f"Answers of {result['answer_tokens']} tokens, recall {result['recall']}, every token an event with its"
        " log-probability over HTTP. Both count from the call to the token in the caller's hands, a new conversation's"
        " caches included. Ratios above 1 favour HTTP."
    )
    columns = ("through", "first token, ms", "tokens/s")
    return [Sheet(f"the local server: {subject(result)}", columns, rows, note)]


SCENARIO = Scenario(
    name="http",
    summary="Time to first token and tokens per second through edge-client serve, against the SDK.",
    settings=HttpSettings,
    measure=measure,
    promised=(
        "model",
        "precision",
        "provider",
        "threads",
        "sdk_first_token_ms",
        "http_first_token_ms",
        "sdk_tokens_per_s",
        "http_tokens_per_s",
        "first_token_ratio",
        "ratio",
    ),
    sheets=sheets,
)
