"""What recalling costs decoding: the SDK against a real service on loopback; llama.cpp and the memory bus as limits.

And what drafts bring: answers to questions with given references, with and without. And a long prompt, and all threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from deploy.bench.answers.answering import AnswerSettings
from deploy.bench.answers.decoding import decoding_sheets, measure_decoding, speeds
from deploy.bench.answers.speculation import measure_speculation, speculation_sheets
from deploy.bench.answers.threads import measure_threads, threads_sheets
from deploy.bench.intervals import median_interval, ratio_interval
from deploy.bench.llama import HOW_TO_BUILD, LlamaCpp
from deploy.bench.scenario import Keys, Scenario, Sheet, figure, with_intervals
from memory3.files.bundle import Bundle

PEER = "llama.cpp"


class DecodeSettings(AnswerSettings):
    """The paper's lengths, every recall a real one.

    questions: of each kind, answered with drafts and without; 0: drafts are not measured. prefill_tokens: of a long
    prompt, read on `threads` and on all cores; 0: neither is measured.
    """

    rounds: int = 11
    questions: int = Field(default=20, ge=0, le=90)
    prefill_tokens: int = Field(default=1000, ge=0, le=1900)


def measure(settings: DecodeSettings) -> Keys:
    """The keys of `deploy.bench.answers.decoding`, and those of the peer."""
    llama = LlamaCpp.find(Bundle.open(settings.bundle).manifest.name)
    tokens, threads = settings.answer_tokens, settings.threads
    others = {PEER: lambda _: tokens / llama.bench(generate=tokens, threads=threads)} if llama else {}
    keys, samples = measure_decoding(settings, others)
    parts = [measure_speculation(settings, settings.questions)] if settings.questions else []
    if settings.prefill_tokens:
        parts.append(measure_threads(settings, settings.prefill_tokens, llama))
    for part in parts:
        keys = {**keys, **part, "intervals": {**keys["intervals"], **part.get("intervals", {})}}
    if not llama:
        return {**keys, "ratio_vs_llama_cpp": None, "llama_cpp": None, "llama_cpp_missing": HOW_TO_BUILD}
    return with_intervals(
        {**keys, "llama_cpp": llama.described()},
        llama_cpp_tokens_per_s=median_interval(samples[PEER]),
        ratio_vs_llama_cpp=ratio_interval(speeds(samples["off"]), samples[PEER]),
    )


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """The modes, the stages, the limits, threads, and drafts."""
    llama, read = result["llama_cpp"], result["bytes_per_token"]
    copy = f"a copy of memory, {figure(result, 'copy_gb_per_s')} GB/s"
    rows = [(copy, f"{sum(read.values()) / 1e6:.0f} MB per token", figure(result, "bandwidth_fraction"))]
    if llama:
        name = f"llama.cpp {llama['version']}, {llama['model']}, {llama['bits_per_weight']} bits a weight"
        speed = f"{figure(result, 'llama_cpp_tokens_per_s')} tokens/s"
        rows.append((name, speed, figure(result, "ratio_vs_llama_cpp")))
    note = (
        "Without memory. Each token reads the weights and half of the answer's KV cache; a copy counts bytes read and"
        " written. llama-bench decodes with an empty context, without sampling or text."
        + ("" if llama else f" {result['llama_cpp_missing']}.")
    )
    limits = Sheet("against limits and peers", ("limit or peer", "", "ours / limit ↑"), rows, note)
    return [*decoding_sheets(result), limits, *threads_sheets(result), *speculation_sheets(result)]


SCENARIO = Scenario(
    name="decode",
    summary="Decoding with memories from a service on loopback, without memories, against peers, and with drafts.",
    settings=DecodeSettings,
    quick={"rounds": 3, "questions": 3, "prefill_tokens": 256},
    measure=measure,
    sheets=sheets,
)
