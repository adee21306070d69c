"""Prefill and decoding without memories, on the settings' threads and on all cores, against llama.cpp on as many."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from deploy.bench.answers.answering import NO_LOCAL, AnswerSettings, answer
from deploy.bench.answers.knowledge import prompts
from deploy.bench.intervals import Interval, interleave, median_interval, ratio_interval
from deploy.bench.llama import LlamaCpp
from deploy.bench.scenario import Keys, Sheet, figure, with_intervals
from edge_client import EdgeModel

PREFILL, DECODING, PEER_PREFILL, PEER_DECODING = "prefill", "decoding", "llama.cpp's prefill", "llama.cpp's decoding"
MOST_ROUNDS = 5
"""A long prompt takes ten seconds and more of a large model."""


def measure_threads(settings: AnswerSettings, tokens: int, llama: LlamaCpp | None) -> Keys:
    """Rows by number of threads, and their ratios on one number and on all by name. tokens: of the long prompt."""
    every = len(os.sched_getaffinity(0))
    rows = [_row(settings, tokens, threads, llama) for threads in sorted({settings.threads, every})]
    keys: Keys = {"prefill_tokens": tokens, "threads_rows": rows, "intervals": {}}
    for row in rows:
        suffixes = [""] * (row["threads"] == settings.threads) + ["_all_threads"] * (row["threads"] == every)
        for suffix in suffixes:
            for name in ("prefill_tokens_per_s", "ratio_prefill_vs_llama_cpp", "ratio_vs_llama_cpp"):
                if name in row and (suffix or name != "ratio_vs_llama_cpp"):
                    keys[name + suffix] = row[name]
                    keys["intervals"][name + suffix] = row["intervals"][name]
    return keys


def threads_sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a number of threads; none where it was not measured."""
    if "threads_rows" not in result:
        return []
    names = (
        "prefill_tokens_per_s",
        "llama_cpp_prefill_tokens_per_s",
        "ratio_prefill_vs_llama_cpp",
        "tokens_per_s",
        "llama_cpp_tokens_per_s",
        "ratio_vs_llama_cpp",
    )
    rows = [(str(row["threads"]), *(figure(row, name) for name in names)) for row in result["threads_rows"]]
    columns = ("threads", "prefill ↑", "llama.cpp ↑", "ratio ↑", "decoding ↑", "llama.cpp ↑", "ratio ↑")
    note = (
        f"Tokens/s without memory: of a prompt of {result['prefill_tokens']:,} tokens until the first token of the"
        " answer, and of the tokens after it behind a short prompt."
    )
    return [Sheet("prefill and decoding by threads", columns, rows, note)]


def _row(settings: AnswerSettings, tokens: int, threads: int, llama: LlamaCpp | None) -> Keys:
    rounds, generated = min(settings.rounds, MOST_ROUNDS), settings.answer_tokens
    with EdgeModel.open(settings.bundle, offline=True, local=NO_LOCAL, threads=threads, provider="cpu") as model:
        long = prompts(model.bundle, rounds + 1, tokens)
        short = prompts(model.bundle, rounds + 1, settings.prompt_tokens)

        def prefill(number: int) -> float:
            statistics = answer(model, long[number], "off", 2).statistics
            return 1e3 * (statistics.prompt_tokens - statistics.reused_tokens) / statistics.first_token_ms

        def decoding(number: int) -> float:
            return answer(model, short[number], "off", generated).tokens_per_s

        variants: dict[str, Callable[[int], float]] = {PREFILL: prefill, DECODING: decoding}
        if llama and llama.reads_prompts:
            variants[PEER_PREFILL] = lambda _: tokens / llama.bench(prompt=tokens, threads=threads)
        if llama:
            variants[PEER_DECODING] = lambda _: generated / llama.bench(generate=generated, threads=threads)
        answer(model, short[-1], "off", 2)  # llama-bench warms up by itself
        samples = interleave(variants, rounds, warm_up=0, label=f"{threads} threads")
    measured: dict[str, Interval] = {
        "prefill_tokens_per_s": median_interval(samples[PREFILL]),
        "tokens_per_s": median_interval(samples[DECODING]),
    }
    if llama:
        measured |= {
            "llama_cpp_tokens_per_s": median_interval(samples[PEER_DECODING]),
            "ratio_vs_llama_cpp": ratio_interval(samples[DECODING], samples[PEER_DECODING]),
        }
    if PEER_PREFILL in samples:
        measured |= {
            "llama_cpp_prefill_tokens_per_s": median_interval(samples[PEER_PREFILL]),
            "ratio_prefill_vs_llama_cpp": ratio_interval(samples[PREFILL], samples[PEER_PREFILL]),
        }
    return with_intervals({"threads": threads}, **measured)
