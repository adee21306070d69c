"""Where one decoding step goes: time, bytes and bytes a second of every kind of operator, and of a prompt's chunk.

    python -m deploy.edge_profile --decoder build/bundle/decoder.onnx

The runtime's profiler makes every operator look longer. What all of them together have more than an unprofiled run is
taken off in equal parts, so that the column adds up to a real step: a good share, not a stopwatch's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

from deploy.bench.decoding import cache_bytes, weight_bytes
from deploy.bench.scenarios.codec import random_memories
from edge_client.decoder.batch import Decoder
from edge_client.decoder.graph import DecoderGraph, session_options
from edge_client.decoder.providers import OpenedSession
from edge_client.decoder.sequence import Sequence
from edge_client.recall.recaller import Recall
from memory_model.cache_layout import fused_path

PROMPT, TOKEN = 128, 5
WEIGHTS, CACHES = "MatMulNBits", "GroupQueryAttention"
"""Operators that read the weights and the caches; all others read what the last one wrote."""

SMALL_MS = 0.02


@dataclass(frozen=True)
class Share:
    """Of one run: operators of a kind, and the milliseconds of all of them."""

    count: float
    ms: float


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--decoder", type=Path, default=Path("build/bundle/decoder.onnx"))
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--memories", type=int, default=0, help="full, random, in the slots")
    options = arguments.parse_args()
    plain = DecoderGraph.open(options.decoder, threads=options.threads)
    sequence, chunk_s, steps = _answer(plain, options.steps, options.memories)
    step_ms, outside_ms = 1e3 * median(steps), _outside_ms(sequence)
    shares, chunk = _profiled(options, step_ms - outside_ms, 1e3 * median(chunk_s))
    config, copied = plain.config, copy_gb_per_s()
    rows = PROMPT + options.steps / 2
    read = {
        WEIGHTS: weight_bytes(options.decoder) / 1e6,
        CACHES: cache_bytes(config, rows, options.memories) / 1e6,
    }
    title = f"{config.name}, {plain.precision}, {options.threads} thread(s), {options.memories} memories"
    table = Table("operator", "number", "ms", "share", "MB read", "GB/s", title=title)
    shown = [kind for kind, share in shares.items() if share.ms >= SMALL_MS]
    others = [share for kind, share in shares.items() if kind not in shown]
    rest = Share(sum(s.count for s in others), sum(s.ms for s in others))
    for kind, share in [
        *sorted(((k, shares[k]) for k in shown), key=lambda row: -row[1].ms),
        ("others", rest),
    ]:
        mb = read.get(kind)
        rate = ("", "") if mb is None else (f"{mb:.1f}", f"{mb / share.ms:.1f}")
        table.add_row(kind, f"{share.count:.0f}", f"{share.ms:.2f}", f"{share.ms / step_ms:.0%}", *rate)
    table.add_row(
        "outside the runtime, caches cold", "", f"{outside_ms:.2f}", f"{outside_ms / step_ms:.0%}", "", ""
    )
    total = sum(read.values())
    table.add_row("step", f"{sum(s.count for s in shares.values()):.0f}", f"{step_ms:.2f}", "", f"{total:.1f}",
                  f"{total / step_ms:.1f}")  # fmt: skip
    console = Console(width=110)
    console.print(table)
    console.print(
        f"{1e3 / step_ms:.0f} tokens/s; a copy moves {copied:.1f} GB/s (read and written), "
        f"so {total / step_ms / copied:.2f} of it; reading alone would take {total / copied:.2f} ms"
    )
    console.print(f"a chunk of {config.memory.chunk_tokens} tokens: {1e3 * median(chunk_s):.0f} ms, of which "
                  + ", ".join(f"{kind} {share.ms:.0f}" for kind, share in _largest(chunk)))  # fmt: skip


def _answer(graph: DecoderGraph, count: int, memories: int) -> tuple[Sequence, list[float], list[float]]:
    """Seconds of every chunk of a prompt and of every step after it; the first of each are for warming up."""
    config, rng = graph.config, np.random.default_rng(0)
    decoder, size = Decoder(graph, [TOKEN], parallel=1), config.memory.chunk_tokens
    prompt = rng.integers(0, config.vocabulary, PROMPT).tolist()
    chunks, steps = [], []
    for ids in (prompt[:size], prompt):  # the first one only warms up
        sequence = decoder.sequence()
        sequence.begin([*ids, TOKEN], memory=bool(memories))
        sequence.inject(Recall("", tuple(random_memories(config)[:memories])))
        for start in range(0, len(ids), size):
            began = time.perf_counter()
            sequence.read(ids[start : start + size])
            chunks.append(time.perf_counter() - began)
    for _ in range(count + 4):
        began = time.perf_counter()
        sequence.read([TOKEN])
        steps.append(time.perf_counter() - began)
    return sequence, chunks[1:], steps[4:]


def _outside_ms(sequence: Sequence) -> float:
    """Milliseconds of a step that are not spent in the runtime's `run`, median of some steps."""
    graph, inside = sequence.decoder.graph, 0.0
    session = graph.session

    class Timed:
        def run_with_iobinding(self, binding: Any) -> None:
            nonlocal inside
            began = time.perf_counter()
            session.run_with_iobinding(binding)
            inside = time.perf_counter() - began

        def __getattr__(self, name: str) -> Any:
            return getattr(session, name)

    graph.session = Timed()
    outside = []
    for _ in range(20):
        began = time.perf_counter()
        sequence.read([TOKEN])
        outside.append(time.perf_counter() - began - inside)
    graph.session = session
    return 1e3 * median(outside)


def _profiled(
    options: argparse.Namespace, step_ms: float, chunk_ms: float
) -> tuple[Mapping[str, Share], Mapping[str, Share]]:
    """Shares of a step and of a chunk by kind of operator, together as long as an unprofiled run."""
    chosen = session_options(options.threads)
    chosen.enable_profiling = True
    chosen.profile_file_prefix = str(options.decoder.with_name("profile"))
    fused = fused_path(options.decoder)
    path = fused if fused.is_file() else options.decoder
    session = ort.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
    _answer(DecoderGraph(OpenedSession(session, "cpu")), options.steps, options.memories)
    report = Path(session.end_profiling())
    events = json.loads(report.read_text())
    report.unlink()
    runs = sorted((e for e in events if e["name"] == "model_run"), key=lambda e: e["ts"])
    return (
        _shares(events, runs[-options.steps :], step_ms),
        _shares(events, runs[1 : -options.steps - 4], chunk_ms),
    )


def _shares(events: list[dict[str, Any]], runs: list[dict[str, Any]], real_ms: float) -> dict[str, Share]:
    first, last = runs[0]["ts"], runs[-1]["ts"] + runs[-1]["dur"]
    counts: dict[str, int] = defaultdict(int)
    times: dict[str, float] = defaultdict(float)
    for event in events:
        if event["name"].endswith("kernel_time") and first <= event["ts"] <= last:
            counts[event["args"]["op_name"]] += 1
            times[event["args"]["op_name"]] += event["dur"] / 1e3
    number = len(runs)
    excess = max(sum(times.values()) - number * real_ms, 0.0) / sum(counts.values())
    left = {kind: max(times[kind] - excess * counts[kind], 0.0) for kind in times}
    scale = real_ms / sum(left.values())  # what was shorter than the excess made the others too long
    return {kind: Share(counts[kind] / number, left[kind] * scale) for kind in times}


def _largest(shares: Mapping[str, Share]) -> list[tuple[str, Share]]:
    return sorted(shares.items(), key=lambda item: -item[1].ms)[:4]


def copy_gb_per_s() -> float:
    """Gigabytes a second that a copy of a large array reads and writes, best of some, one thread."""
    source = np.ones(1 << 26, np.float32)
    target = np.zeros_like(source)
    times = []
    for _ in range(6):
        began = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - began)
    return 2 * source.nbytes / min(times) / 1e9


if __name__ == "__main__":
    main()
