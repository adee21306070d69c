"""Many users of one machine: conversations at once through `edge-client serve`, and through llama.cpp's server."""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from deploy.bench.intervals import interleave, median_interval, ratio_interval
from deploy.bench.knowledge import prompts, service_for
from deploy.bench.llama import HOW_TO_BUILD, LlamaCpp
from deploy.bench.scenario import (
    Direction,
    Keys,
    Scenario,
    ScenarioFailed,
    Settings,
    Sheet,
    directions,
    figure,
    round_figure,
    subject,
    with_intervals,
)
from deploy.processes import AppProcess
from memory_model.bundle import Bundle

NEVER = -100.0
"""The bias that keeps an answer from ending by itself."""
PEER = "llama.cpp"
TIMEOUT_S = 600.0
BETTER: dict[str, Direction] = {
    "tokens_per_s": "more",
    "end_to_end_tokens_per_s": "more",
    "first_token_ms": "less",
}
FIGURES = tuple(BETTER)
"""Of `Together`."""


class LocalServerSettings(Settings):
    """conversations: at once, each with a prompt of its own. device: the execution provider of the local server."""

    threads: int = Field(default=2, ge=1, le=256)
    conversations: int = Field(default=8, ge=2, le=64)
    prompt_tokens: int = Field(default=128, ge=32, le=4096)
    answer_tokens: int = Field(default=128, ge=8, le=4096)
    device: Literal["cpu", "cuda", "tensorrt"] = "cpu"


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
    """Both modes and the peer in turn; every conversation of a round has a prompt of its own."""
    bundle, llama = Bundle.open(settings.bundle), LlamaCpp.find()
    at_once, said = settings.conversations, settings.answer_tokens
    texts = prompts(bundle, at_once * (settings.rounds + settings.warm_up), settings.prompt_tokens)
    bias = dict.fromkeys(bundle.tokenizer.stop_ids, NEVER)
    environment = {"EDGE_CLIENT_THREADS": str(settings.threads), "EDGE_CLIENT_PROVIDER": settings.device}

    def messages(number: int) -> list[list[dict[str, str]]]:
        """Of the round `number`, negative ones included."""
        first = (number + settings.warm_up) * at_once
        return [[{"role": "user", "content": text}] for text in texts[first : first + at_once]]

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        service = stack.enter_context(service_for(settings, bundle))
        options = ("--parallel", str(at_once))
        app = stack.enter_context(
            AppProcess.start(folder, settings.bundle, service, *options, environment=environment)
        )

        def ours(mode: str, conversations: int) -> Callable[[int], Together]:
            def run(number: int) -> Together:
                bodies = [
                    {
                        "messages": conversation, "stream": True, "max_tokens": said, "logit_bias": bias,
                        "memory": {"mode": mode}, "stream_options": {"include_usage": True},
                    }
                    for conversation in messages(number)[:conversations]
                ]  # fmt: skip
                return _together(app.port, "/v1/chat/completions", bodies, _of_ours)

            return run

        def by_llama(number: int) -> Together:
            bodies = [
                {
                    "prompt": bundle.chat.prompt(conversation).ids, "stream": True, "n_predict": said,
                    "ignore_eos": True, "temperature": 0,
                }
                for conversation in messages(number)
            ]  # fmt: skip
            return _together(peer_port, "/completion", bodies, _of_llama)

        variants: dict[str, Callable[[int], Together]] = {
            "without": ours("off", at_once), "with": ours("overlap", at_once), "alone": ours("off", 1),
        }  # fmt: skip
        if llama and settings.device == "cpu":
            context = settings.prompt_tokens + said + 64
            peer_port = stack.enter_context(
                llama.server(
                    slots=at_once, context=context, threads=settings.threads, log=folder / "llama.log"
                )
            )
            variants[PEER] = by_llama
        samples = interleave(variants, settings.rounds, warm_up=settings.warm_up)
    for name, found in samples.items():
        for stream in (stream for together in found for stream in together.streams):
            if stream.tokens != said:
                raise ScenarioFailed(f"an answer of {name!r} has {stream.tokens} tokens, not {said}")
    return _keys(bundle, settings, samples, llama if PEER in samples else None)


def _keys(
    bundle: Bundle, settings: LocalServerSettings, samples: Mapping[str, list[Together]], llama: LlamaCpp | None
) -> Keys:  # fmt: skip
    values = {
        name: {variant: [getattr(t, name) for t in found] for variant, found in samples.items()}
        for name in FIGURES
    }
    speeds, whole = values["tokens_per_s"], values["end_to_end_tokens_per_s"]
    chunks = [c for together in samples["with"] for s in together.streams for c in s.chunks]
    read = [len(c["read"]) for c in chunks if c["read"]]
    if not read:
        raise ScenarioFailed(f"no memories were read: {chunks[0]['error'] if chunks else 'no recall'}")
    keys: Keys = {
        "model": bundle.manifest.name, "precision": bundle.manifest.precision, "provider": settings.device,
        "threads": settings.threads, "conversations": settings.conversations,
        "memories_per_chunk": round_figure(fmean(read)), "states": dict(Counter(c["state"] for c in chunks)),
        "rounds": {name: [round_figure(speed) for speed in found] for name, found in speeds.items()},
    }  # fmt: skip
    measured = {
        f"{name}_{variant}": median_interval(values[name][variant])
        for name in FIGURES
        for variant in ("with", "without", "alone")
    }
    measured["ratio"] = ratio_interval(speeds["with"], speeds["without"])
    measured["ratio_end_to_end"] = ratio_interval(whole["with"], whole["without"])
    measured["batching_gain"] = ratio_interval(speeds["without"], speeds["alone"])
    if llama is None:
        missing = {"ratio_vs_llama_cpp": None, "llama_cpp": None, "llama_cpp_missing": HOW_TO_BUILD}
        return with_intervals({**keys, **missing}, **measured)
    measured |= {f"llama_cpp_{name}": median_interval(values[name][PEER]) for name in FIGURES}
    measured["ratio_vs_llama_cpp"] = ratio_interval(speeds["without"], speeds[PEER])
    return with_intervals({**keys, "llama_cpp": llama.described()}, **measured)


Read = Callable[[Sequence[tuple[float, bytes]]], Stream]


def _together(port: int, path: str, bodies: Sequence[Mapping[str, Any]], read: Read) -> Together:
    """Send all at once; what arrives is parsed when the last one is over. Raises ScenarioFailed."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        began = time.perf_counter()
        lines = list(pool.map(lambda body: _lines(port, path, body), bodies))
    return Together(began, [read(found) for found in lines])


def _lines(port: int, path: str, body: Mapping[str, Any]) -> list[tuple[float, bytes]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ScenarioFailed(f"{path} answered {answer.status}: {answer.read()[:500]!r}")
        return [(time.perf_counter(), line[6:]) for line in answer if line.startswith(b"data: {")]
    finally:
        connection.close()


def _of_ours(lines: Sequence[tuple[float, bytes]]) -> Stream:
    times, chunks, tokens = [], [], 0
    for moment, line in lines:
        event = json.loads(line)
        if "error" in event:
            raise ScenarioFailed(f"the local server failed: {event['error']}")
        chunks += event.get("memory", {}).get("chunks", [])
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        if any(choice["delta"].get("content") for choice in event["choices"]):
            times.append(moment)
    return Stream(tuple(times), tokens, tuple(chunks))


def _of_llama(lines: Sequence[tuple[float, bytes]]) -> Stream:
    events = [(moment, json.loads(line)) for moment, line in lines]
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
    ]  # fmt: skip
    if llama:
        name = f"llama.cpp {llama['version']}, {llama['bits_per_weight']} bits a weight"
        whole, first = "llama_cpp_end_to_end_tokens_per_s", "llama_cpp_first_token_ms"
        rows.append((name, "llama_cpp_tokens_per_s", whole, first, "ratio_vs_llama_cpp"))
    settings = result["settings"]
    note = (
        f"{result['conversations']} conversations at once, each with {settings['prompt_tokens']} tokens of prompt and"
        f" {settings['answer_tokens']} of answer, streamed over HTTP. Decoding counts all from the last one's first"
        " token to the first one's last. Ratios: with memory over without, all over one alone, without memory over"
        f" llama.cpp's server. A chunk that read memories had {result['memories_per_chunk']:.2g} of them."
        + ("" if llama else f" {result.get('llama_cpp_missing', HOW_TO_BUILD)}.")
    )
    columns = ("", "tokens/s", "end to end", "first token, ms", "ratio")
    shown = [(label, *(figure(result, key) if key else "" for key in keys)) for label, *keys in rows]
    return [Sheet(f"many users: {subject(result)}", columns, shown, note)]


SCENARIO = Scenario(
    name="local-server",
    summary="Conversations at once through edge-client serve, with memories and without, and through llama.cpp.",
    settings=LocalServerSettings,
    measure=measure,
    promised=("tokens_per_s_with", "tokens_per_s_without", "ratio", "ratio_vs_llama_cpp"),
    directions={
        **{f"{name}_{of}": BETTER[name] for name in FIGURES for of in ("with", "without", "alone")},
        **directions(
            more="ratio ratio_end_to_end batching_gain ratio_vs_llama_cpp",
            none=" ".join(f"llama_cpp_{name}" for name in FIGURES),
        ),
    },
    sheets=sheets,
    quick={"rounds": 2},
)
