"""Many users of one machine: conversations at once through `edge-client serve`, and through llama.cpp's server."""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from deploy.bench.answers.answering import NEVER
from deploy.bench.answers.knowledge import prompts, service_for
from deploy.bench.intervals import interleave, median_interval, ratio_interval
from deploy.bench.llama import LlamaCpp
from deploy.bench.scenario import (
    Keys,
    Scenario,
    ScenarioFailed,
    Sheet,
    TargetSettings,
    figure,
    round_figure,
    subject,
    with_intervals,
)
from memory3.files.bundle import Bundle
from testing.processes import AppProcess

PEER = "llama.cpp"
FREQUENCY_PENALTY = 0.5
"""Of both sides: a greedy answer that says the same again and again would be ended before its time."""
TIMEOUT_S = 600.0
FIGURES = ("tokens_per_s", "end_to_end_tokens_per_s", "first_token_ms")
"""Of `Together`."""


class LocalServerSettings(TargetSettings):
    """conversations: at once, each with a prompt of its own. device: the execution provider of the local server."""

    threads: int = Field(default=2, ge=1, le=256)
    conversations: int = Field(default=8, ge=2, le=64)
    prompt_tokens: int = Field(default=128, ge=32, le=4096)
    answer_tokens: int = Field(default=128, ge=8, le=4096)
    device: Literal["cpu", "cuda", "tensorrt", "torch"] = "cpu"


@dataclass(frozen=True)
class Stream:
    """One streamed answer: when each event with text arrived, what it cost in tokens, and what it read."""

    times: tuple[float, ...]
    tokens: int
    chunks: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Together:
    """Answers that were requested at the same moment."""

    began: float
    streams: Sequence[Stream]

    @property
    def tokens_per_s(self) -> float:
        """Of decoding, all together: from the last one's first token to the first one's last. Raises ScenarioFailed."""
        start, end = max(s.times[0] for s in self.streams), min(s.times[-1] for s in self.streams)
        if end <= start:
            raise ScenarioFailed("the answers did not overlap, so no batch was measured: take longer answers")
        parts = (s.tokens * sum(start < t <= end for t in s.times) / len(s.times) for s in self.streams)
        return sum(parts) / (end - start)

    @property
    def end_to_end_tokens_per_s(self) -> float:
        """All tokens of the answers by all time, prompts and their recalls included."""
        return sum(s.tokens for s in self.streams) / (max(s.times[-1] for s in self.streams) - self.began)

    @property
    def first_token_ms(self) -> float:
        """From the request to the first token, on average."""
        return 1e3 * fmean(s.times[0] - self.began for s in self.streams)


def measure(settings: LocalServerSettings) -> Keys:
    """Both modes and the peer in turn; every conversation of a round has a prompt of its own.

    So has the one that is alone: our server reuses what it has read of the same prompt, llama.cpp's is told not to.
    """
    bundle = Bundle.open(settings.bundle)
    llama, why_not = LlamaCpp.reading(bundle.manifest.name) if settings.device == "cpu" else (None, "")
    at_once, answer_tokens = settings.conversations, settings.answer_tokens
    each, numbers = at_once + 1, range(-settings.warm_up, settings.rounds)
    texts = iter(prompts(bundle, each * len(numbers), settings.prompt_tokens))
    of_round = {number: list(islice(texts, each)) for number in numbers}
    bias = dict.fromkeys(bundle.tokenizer.stop_ids, NEVER)
    environment = {"EDGE_CLIENT_THREADS": str(settings.threads), "EDGE_CLIENT_PROVIDER": settings.device}

    def ours(texts: Sequence[str], mode: str) -> Together:
        fixed = {
            "stream": True,
            "max_tokens": answer_tokens,
            "logit_bias": bias,
            "frequency_penalty": FREQUENCY_PENALTY,
            "memory": {"mode": mode},
            "stream_options": {"include_usage": True},
        }
        bodies = [{"messages": _question(text), **fixed} for text in texts]
        return _together(app.port, "/v1/chat/completions", bodies, _of_ours)

    def by_llama(texts: Sequence[str]) -> Together:
        fixed = {
            "stream": True,
            "n_predict": answer_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "frequency_penalty": FREQUENCY_PENALTY,
        }
        bodies = [{"prompt": bundle.chat.prompt(_question(text)).ids, **fixed} for text in texts]
        return _together(peer_port, "/completion", bodies, _of_llama)

    variants: dict[str, Callable[[int], Together]] = {
        "without": lambda number: ours(of_round[number][:at_once], "off"),
        "with": lambda number: ours(of_round[number][:at_once], "overlap"),
        "alone": lambda number: ours(of_round[number][at_once:], "off"),
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        service = stack.enter_context(service_for(settings, bundle))
        parallel = ("--parallel", str(at_once))
        app = AppProcess.start(folder, settings.bundle, service, *parallel, environment=environment)
        stack.enter_context(app)
        if llama:
            context = settings.prompt_tokens + answer_tokens + 64
            server = llama.server(at_once, context, settings.threads, folder / "llama.log")
            peer_port = stack.enter_context(server)
            variants[PEER] = lambda number: by_llama(of_round[number][:at_once])
        samples = interleave(variants, settings.rounds, warm_up=settings.warm_up)
    short = {n for n, found in samples.items() for t in found for s in t.streams if s.tokens != answer_tokens}
    if short:
        raise ScenarioFailed(f"answers of {', '.join(short)} have not {answer_tokens} tokens")
    return {**_keys(bundle, settings, samples, llama), "llama_cpp_missing": why_not}


def _keys(
    bundle: Bundle, settings: LocalServerSettings, samples: Mapping[str, list[Together]], llama: LlamaCpp | None
) -> Keys:
    values = {name: {of: [getattr(t, name) for t in found] for of, found in samples.items()} for name in FIGURES}
    speeds, whole = values["tokens_per_s"], values["end_to_end_tokens_per_s"]
    chunks = [c for together in samples["with"] for s in together.streams for c in s.chunks]
    read = [len(c["read"]) for c in chunks if c["read"]]
    if not read:
        raise ScenarioFailed(f"no memories were read: {chunks[0]['error'] if chunks else 'no recall'}")
    keys: Keys = {
        "model": bundle.manifest.name,
        "precision": bundle.manifest.precision,
        "provider": settings.device,
        "threads": settings.threads,
        "conversations": settings.conversations,
        "memories_per_chunk": round_figure(fmean(read)),
        "states": dict(Counter(c["state"] for c in chunks)),
        "rounds": {name: [round_figure(speed) for speed in found] for name, found in speeds.items()},
        "llama_cpp": llama.described() if llama else None,
        "ratio_vs_llama_cpp": None,
    }
    measured = {
        f"{name}_{variant}": median_interval(values[name][variant])
        for name in FIGURES
        for variant in ("with", "without", "alone")
    }
    measured["ratio"] = ratio_interval(speeds["with"], speeds["without"])
    measured["ratio_end_to_end"] = ratio_interval(whole["with"], whole["without"])
    measured["batching_gain"] = ratio_interval(speeds["without"], speeds["alone"])
    if llama:
        measured |= {f"llama_cpp_{name}": median_interval(values[name][PEER]) for name in FIGURES}
        measured["ratio_vs_llama_cpp"] = ratio_interval(speeds["without"], speeds[PEER])
    return with_intervals(keys, **measured)


def _question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


Read = Callable[[Sequence[tuple[float, Any]]], Stream]


def _together(port: int, path: str, bodies: Sequence[Mapping[str, Any]], read: Read) -> Together:
    """Send all at once; what arrives is parsed when the last one is over. Raises ScenarioFailed."""

    def lines(body: Mapping[str, Any]) -> list[tuple[float, bytes]]:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)) as connection:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise ScenarioFailed(f"{path} answered {answer.status}: {answer.read()[:500]!r}")
            return [(time.perf_counter(), line[6:]) for line in answer if line.startswith(b"data: {")]

    with ThreadPoolExecutor(len(bodies)) as pool:
        began = time.perf_counter()
        received = list(pool.map(lines, bodies))
    return Together(began, [read([(moment, json.loads(line)) for moment, line in one]) for one in received])


def _of_ours(events: Sequence[tuple[float, Any]]) -> Stream:
    times, chunks, tokens = [], [], 0
    for moment, event in events:
        if "error" in event:
            raise ScenarioFailed(f"the local server failed: {event['error']}")
        chunks += event.get("memory", {}).get("chunks", [])
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        if any(choice["delta"].get("content") for choice in event["choices"]):
            times.append(moment)
    return Stream(tuple(times), tokens, tuple(chunks))


def _of_llama(events: Sequence[tuple[float, Any]]) -> Stream:
    if not events or "tokens_predicted" not in events[-1][1]:
        raise ScenarioFailed(f"llama-server failed: {events[-1][1] if events else 'no event'}")
    times = tuple(moment for moment, event in events if event.get("content"))
    return Stream(times, int(events[-1][1]["tokens_predicted"]))


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One table."""
    llama = result["llama_cpp"]
    rows = [
        ("without memory", "tokens_per_s_without", "end_to_end_tokens_per_s_without", "first_token_ms_without", ""),
        ("with memory", "tokens_per_s_with", "end_to_end_tokens_per_s_with", "first_token_ms_with", "ratio"),
        ("one conversation alone", "tokens_per_s_alone", "", "", "batching_gain"),
    ]
    if llama:
        name = f"llama.cpp {llama['version']}, {llama['bits_per_weight']} bits a weight"
        whole, first = "llama_cpp_end_to_end_tokens_per_s", "llama_cpp_first_token_ms"
        rows.append((name, "llama_cpp_tokens_per_s", whole, first, "ratio_vs_llama_cpp"))
    note = (
        "Decoding counts the time in which all conversations decode. Ratios: with memory over without, all over one"
        " alone, without memory over llama.cpp's server, for provider cpu. All prompts differ; `edge-client serve`"
        " reads the template's beginning, which they share, once, and llama.cpp's server for each."
        + (f" {why_not}." if (why_not := result.get("llama_cpp_missing")) else "")
    )
    columns = (f"{result['conversations']} conversations", "tokens/s ↑", "end to end ↑", "first token, ms ↓", "ratio ↑")
    shown = [(label, *(figure(result, key) if key else "" for key in keys)) for label, *keys in rows]
    return [Sheet(f"many users: {subject(result)}", columns, shown, note)]


SCENARIO = Scenario(
    name="local-server",
    summary="Concurrent conversations through edge-client serve, with and without memories, and through llama.cpp.",
    settings=LocalServerSettings,
    measure=measure,
    sheets=sheets,
    quick={"rounds": 2},
)
