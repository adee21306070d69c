"""Decoding with and without memory in interleaved rounds: what bench-decode, bench-shape and bench-network measure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

import onnx

from deploy.bench.answers.answering import Answered, AnswerSettings, answer, require_memories
from deploy.bench.answers.knowledge import prompts, service_for
from deploy.bench.intervals import Interval, interleave, median_interval, ratio_interval
from deploy.bench.machine import copy_gb_per_s
from deploy.bench.scenario import Keys, Sheet, figure, round_figure, subject, with_intervals
from edge_client import EdgeModel
from memory3.config import ModelConfig
from memory3.files.bundle import Bundle

MODES = ("off", "overlap", "exact")
CITED = "citations"
"""As overlap, with the memories that each part of the answer was read from."""
COPY = "copying memory"
STAGES = ("queue", "embed", "network", "server", "decompress", "inject")
COUNTED = (
    "Decoding excludes the first token. Every chunk gets memories, none cached. Ratios are to decoding without memory,"
    " per round."
)
"""What the figures of an answer mean, for the notes of tables."""
_BITS: dict[int, int] = {
    onnx.TensorProto.FLOAT: 32,
    onnx.TensorProto.FLOAT16: 16,
    onnx.TensorProto.INT8: 8,
    onnx.TensorProto.UINT8: 8,
    onnx.TensorProto.INT4: 4,
    onnx.TensorProto.UINT4: 4,
    onnx.TensorProto.INT32: 32,
    onnx.TensorProto.INT64: 64,
    onnx.TensorProto.BOOL: 8,
}
CACHE_BYTES = 4
"""Of one number in the caches, float32."""


def measure_modes(
    model: EdgeModel,
    prompts: Sequence[str],
    settings: AnswerSettings,
    others: Mapping[str, Callable[[int], float]] | None = None,
    label: str = "answers",
    *,
    citations: bool = False,
) -> dict[str, list[Any]]:
    """Answers of every mode by name, and what `others` gives, all in turn; every round has its prompt.

    citations: also answers with them. Raises ScenarioFailed if a mode that recalls read no memories.
    """

    def speaking(mode: str, cited: bool = False) -> Callable[[int], Answered]:
        tokens = settings.answer_tokens
        return lambda number: answer(model, prompts[number % len(prompts)], mode, tokens, citations=cited)

    variants: dict[str, Callable[[int], Any]] = {mode: speaking(mode) for mode in MODES}
    if citations:
        variants[CITED] = speaking("overlap", cited=True)
    variants.update(others or {})
    samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label=label)
    for mode in ("overlap", "exact"):
        require_memories(samples[mode])
    return samples


def measure_decoding(
    settings: AnswerSettings, others: Mapping[str, Callable[[int], float]] | None = None, model: Path | None = None
) -> tuple[Keys, dict[str, list[Any]]]:
    """Keys and samples of all modes against a service, `others` and a copy of memory in the same rounds.

    model: folder of the model that the service writes memories with.
    """
    bundle = Bundle.open(settings.bundle)
    texts = prompts(bundle, settings.rounds + 1, settings.prompt_tokens)
    variants = {COPY: lambda _: copy_gb_per_s(settings.threads), **(others or {})}
    with service_for(settings, bundle, model) as address, settings.open(address) as opened:
        samples = measure_modes(opened, texts, settings, variants, citations=True)
        return decoding_keys(opened, samples, settings), samples


def decoding_keys(model: EdgeModel, samples: Mapping[str, list[Any]], settings: AnswerSettings) -> Keys:
    """The keys that the targets name, of the samples of all modes and of the copies next to them."""
    off, overlap, exact = (samples[mode] for mode in MODES)
    config, text = model.engine.decoder.backend.config, settings.prompt_tokens + settings.answer_tokens / 2
    read = {"weights": weight_bytes(model.bundle.decoder), "caches": int(cache_bytes(config, text, 0))}
    whole = config.parameters() - (0 if config.tied_embeddings else config.vocabulary * config.hidden)
    measured: dict[str, Interval] = {
        "tokens_per_s_without": median_interval(speeds(off)),
        "tokens_per_s_with": median_interval(speeds(overlap)),
        "tokens_per_s_exact": median_interval(speeds(exact)),
        "first_token_ms_without": median_interval([a.statistics.first_token_ms for a in off]),
        "first_token_ms_with": median_interval([a.statistics.first_token_ms for a in overlap]),
        "copy_gb_per_s": median_interval(samples[COPY]),
        "bandwidth_fraction": ratio_interval([sum(read.values()) / 1e9 * s for s in speeds(off)], samples[COPY]),
    }
    for answers, mode in ((overlap, ""), (exact, "_exact")):
        blocked = [a.statistics.blocked_ms_per_chunk for a in answers]
        measured[f"ratio{mode}"] = ratio_interval(speeds(answers), speeds(off))
        measured[f"ratio_end_to_end{mode}"] = ratio_interval(whole_speeds(answers), whole_speeds(off))
        measured[f"blocked_ms_per_chunk{mode}"] = median_interval(blocked)
    if CITED in samples:
        measured["tokens_per_s_citations"] = median_interval(speeds(samples[CITED]))
        measured["ratio_citations"] = ratio_interval(speeds(samples[CITED]), speeds(overlap))
    memories = [len(r.recall.memories) for a in overlap for r in a.recalls if r.recall.memories]
    keys: Keys = {
        "model": model.bundle.manifest.name,
        "precision": model.engine.decoder.backend.precision,
        "provider": model.engine.decoder.backend.provider,
        "threads": settings.threads,
        "lead_tokens": model.engine.policy.lead_tokens,
        "bytes_per_token": read,
        "bits_per_weight": round_figure(8 * read["weights"] / whole),
        "stages_ms": stages_ms(overlap),
        "states": states(overlap),
        "memories_per_chunk": round_figure(fmean(memories)),
        "rounds": {mode: [round_figure(a.tokens_per_s) for a in samples[mode]] for mode in MODES},
    }
    return with_intervals(keys, **measured)


def speeds(answers: Sequence[Answered]) -> list[float]:
    """Tokens per second of decoding."""
    return [a.tokens_per_s for a in answers]


def whole_speeds(answers: Sequence[Answered]) -> list[float]:
    """Tokens per second of everything, the prompt and its recall included."""
    return [a.end_to_end_tokens_per_s for a in answers]


def stages_ms(answers: Sequence[Answered]) -> dict[str, float]:
    """Mean milliseconds of each stage of a generated chunk's recall, during decoding or before it.

    network: the call without the server's own time.
    """
    times = [r.recall.times for a in answers for r in a.generated]
    if not times:
        return {}
    means = {f.name.removesuffix("_ms"): fmean(getattr(t, f.name) for t in times) for f in fields(times[0])}
    means["network"] = max(means["call"] - means["server"], 0.0)
    return {name: round_figure(value) for name, value in means.items()}


def states(answers: Sequence[Answered]) -> dict[str, int]:
    """How many generated chunks' recalls ended in which state."""
    return dict(Counter(r.state for a in answers for r in a.generated))


def decoding_sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """Speeds by mode, then where a recall's time goes."""
    overlap = ("tokens_per_s_with", "ratio", "ratio_end_to_end", "blocked_ms_per_chunk")
    exact = ("tokens_per_s_exact", "ratio_exact", "ratio_end_to_end_exact", "blocked_ms_per_chunk_exact")
    rows = [
        ("off", figure(result, "tokens_per_s_without"), "1", "1", "0"),
        ("overlap", *(figure(result, name) for name in overlap)),
        ("exact", *(figure(result, name) for name in exact)),
    ]
    if "ratio_citations" in result:
        cited = figure(result, "tokens_per_s_citations"), f"{figure(result, 'ratio_citations')} of overlap"
        rows.append((CITED, *cited, "–", "–"))
    columns = ("recall", "tokens/s ↑", "ratio ↑", "ratio end to end ↑", "blocked, ms per chunk ↓")
    stages = tuple(f"{result['stages_ms'].get(name, 0):.3g}" for name in STAGES)
    note = "Mean milliseconds per generated chunk; network is the call without the server's time."
    return [
        Sheet(subject(result), columns, rows, COUNTED),
        Sheet("time of a recall in parallel with decoding", STAGES, [stages], note),
    ]


def weight_bytes(decoder: Path) -> int:
    """Bytes of the constants of a decoder's graph that a step reads whole.

    A table of which a step only gathers rows (embeddings that are not the head's too, rotary angles) is left out.
    """
    graph = onnx.load(str(decoder), load_external_data=False).graph
    whole: set[str] = set()
    for node in graph.node:
        gathered = node.input[0] if node.op_type == "Gather" else None
        whole.update(name for name in node.input if name != gathered)
    return sum(math.ceil(math.prod(t.dims) * _BITS[t.data_type] / 8) for t in graph.initializer if t.name in whole)


def cache_bytes(config: ModelConfig, text_rows: float, memories: int) -> float:
    """Bytes of keys and values that a step reads with `text_rows` tokens and `memories` memories in the caches."""
    text = config.layers * config.kv_heads * text_rows
    return CACHE_BYTES * 2 * config.head_dim * (text + memories * config.memory.budget)
