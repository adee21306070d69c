"""One decoding step taken apart: what five memories cost it, and how much of it is spent outside the runtime."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from deploy.bench.answering import AnswerSettings
from deploy.bench.decoding import COPY, copying
from deploy.bench.intervals import median_interval, ratio_interval
from deploy.bench.rounds import interleave
from deploy.bench.scenario import Keys, Scenario, Sheet, figure, subject, with_intervals
from deploy.bench.scenarios.codec import random_memories
from deploy.bench.weights_read import cache_bytes, weight_bytes
from edge_client.decoder.batch import Decoder
from edge_client.decoder.graph import DecoderGraph
from edge_client.recall.recaller import Recall
from memory_model.codec.payload import ExplicitMemory

TOKEN = 5


@dataclass(frozen=True)
class _Steps:
    """Medians of one answer's steps, in seconds. outside: of the runtime's `run`. prompt: reading it, all chunks."""

    step: float
    outside: float
    prompt: float
    inject: float


class _TimedSession:
    """Stands before a runtime session and adds up the time inside `run_with_iobinding`."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.inside_s = 0.0

    def run_with_iobinding(self, *arguments: Any) -> None:
        began = time.perf_counter()
        self._session.run_with_iobinding(*arguments)
        self.inside_s += time.perf_counter() - began

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def measure(settings: AnswerSettings) -> Keys:
    """Random memories of full length: speed does not depend on what they say."""
    path = settings.bundle / "decoder.onnx"
    graph = DecoderGraph.open(path, threads=settings.threads)
    session = _TimedSession(graph.session)
    graph.session = session
    decoder, config = Decoder(graph, [TOKEN], parallel=1), graph.config
    memories = random_memories(config)
    prompt = np.random.default_rng(0).integers(0, config.vocabulary, settings.prompt_tokens).tolist()

    def answering(given: list[ExplicitMemory]) -> Any:
        return lambda _: _answer(decoder, session, prompt, given, settings.answer_tokens)

    variants = {"without": answering([]), "with": answering(memories), COPY: copying(settings.threads)}
    samples = interleave(variants, settings.rounds, warm_up=settings.warm_up)
    without, with_all, copied = samples["without"], samples["with"], samples[COPY]
    text = settings.prompt_tokens + settings.answer_tokens / 2
    read = {n: weight_bytes(path) + cache_bytes(config, text, n) for n in (0, len(memories))}
    keys: Keys = {
        "model": config.name, "precision": graph.precision, "provider": graph.provider, "threads": settings.threads,
        "memories": len(memories), "bytes_per_token": int(read[0]), "bytes_per_token_with": int(read[len(memories)]),
    }  # fmt: skip
    return with_intervals(
        keys,
        ratio=ratio_interval([s.step for s in without], [s.step for s in with_all]),
        tokens_per_s_without=median_interval([1 / s.step for s in without]),
        tokens_per_s_with=median_interval([1 / s.step for s in with_all]),
        outside_run_us=median_interval([1e6 * s.outside for s in with_all]),
        inject_ms=median_interval([1e3 * s.inject for s in with_all]),
        prompt_tokens_per_s=median_interval([settings.prompt_tokens / s.prompt for s in without]),
        copy_gb_per_s=median_interval(copied),
        bandwidth_fraction=ratio_interval([read[0] / s.step / 1e9 for s in without], copied),
    )


def _answer(
    decoder: Decoder, session: _TimedSession, prompt: list[int], given: list[ExplicitMemory], tokens: int
) -> _Steps:
    """A prompt in chunks, then an answer token by token."""
    sequence = decoder.sequence()
    sequence.begin(prompt, memory=bool(given))
    sequence.read(prompt[:1])  # takes a place in the caches
    began = time.perf_counter()
    sequence.inject(Recall("", tuple(given)))
    injected = time.perf_counter()
    chunk = decoder.config.memory.chunk_tokens
    for start in range(1, len(prompt), chunk):
        sequence.read(prompt[start : start + chunk])
    prompted = time.perf_counter()
    steps, outside = [], []
    for _ in range(tokens):
        inside, started = session.inside_s, time.perf_counter()
        sequence.read([TOKEN])
        steps.append(time.perf_counter() - started)
        outside.append(steps[-1] - (session.inside_s - inside))
    return _Steps(median(steps), median(outside), prompted - injected, injected - began)


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row of figures."""
    names = (
        "tokens_per_s_without",
        "tokens_per_s_with",
        "ratio",
        "outside_run_us",
        "inject_ms",
        "bandwidth_fraction",
    )
    columns = (
        "tokens/s without",
        f"with {result['memories']} memories",
        "ratio",
        "outside run, µs",
        "inject, ms",
        "of the copy's bandwidth",
    )
    note = "Median steps of the decoder alone: no sampling, no text, no recall. Memories are full and random."
    return [Sheet(subject(result), columns, [tuple(figure(result, n) for n in names)], note)]


SCENARIO = Scenario(
    name="step",
    summary="One decoding step: what five memories add, what is spent outside the runtime.",
    settings=AnswerSettings,
    measure=measure,
    promised=("ratio", "outside_run_us", "inject_ms", "bandwidth_fraction"),
    sheets=sheets,
)
