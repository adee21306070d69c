"""Decoding with a network between device and service, and whole answers against text RAG behind the same network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pydantic import Field

from deploy.bench.answers.answering import AnswerSettings
from deploy.bench.answers.decoding import COUNTED, measure_modes, speeds, states, whole_speeds
from deploy.bench.answers.knowledge import prompts, service_for
from deploy.bench.answers.text_rag import TextRag
from deploy.bench.intervals import median_interval, ratio_interval
from deploy.bench.scenario import Keys, Scenario, Sheet, figure, round_figure, subject, with_intervals
from deploy.bench.shaper import Link, shaped_network
from memory3.files.bundle import Bundle

RAG = "RAG"


class NetworkSettings(AnswerSettings):
    """Every round trip with every bandwidth."""

    rounds: int = 5
    rtt_ms: tuple[float, ...] = Field(default=(0, 20, 50, 100, 200), min_length=1)
    bandwidth_mbit: tuple[float, ...] = Field(default=(100, 20), min_length=1)

    def links(self) -> list[Link]:
        """All of them."""
        return [Link(rtt, mbit) for mbit in self.bandwidth_mbit for rtt in self.rtt_ms]


def measure(settings: NetworkSettings) -> Keys:
    """One row a link."""
    bundle = Bundle.open(settings.bundle)
    texts = prompts(bundle, settings.rounds + 1, settings.prompt_tokens)
    with service_for(settings, bundle) as service:
        rows = [_row(settings, link, service, texts) for link in settings.links()]
    return {
        "model": bundle.manifest.name,
        "precision": bundle.manifest.precision,
        "provider": "cpu",
        "threads": settings.threads,
        "rows": rows,
    }


def _row(settings: NetworkSettings, link: Link, service: str, texts: Sequence[str]) -> Keys:
    label = f"{link.rtt_ms:g} ms, {link.bandwidth_mbit:g} Mbit/s"
    with shaped_network(service, link) as address, settings.open(address) as model:
        rag = TextRag(model, texts, settings)
        samples = measure_modes(model, texts, settings, {RAG: rag.once}, label)
        lead_tokens = model.engine.policy.lead_tokens
    off, overlap, exact = samples["off"], samples["overlap"], samples["exact"]
    found = states(overlap)
    chunks = sum(found.values())
    keys: Keys = {
        "rtt_ms": link.rtt_ms,
        "bandwidth_mbit": link.bandwidth_mbit,
        "lead_tokens": lead_tokens,
        "chunks": chunks,
        "late_chunks": found.get("late", 0),
        "failed_chunks": chunks - sum(found.get(s, 0) for s in ("fetched", "held", "late")),
        "answer_s": {
            "overlap": round_figure(median(a.total_s for a in overlap)),
            "exact": round_figure(median(a.total_s for a in exact)),
            RAG: round_figure(median(samples[RAG])),
        },
    }
    return with_intervals(
        keys,
        ratio_overlap=ratio_interval(speeds(overlap), speeds(off)),
        ratio_exact=ratio_interval(speeds(exact), speeds(off)),
        ratio_end_to_end_overlap=ratio_interval(whole_speeds(overlap), whole_speeds(off)),
        ratio_end_to_end_exact=ratio_interval(whole_speeds(exact), whole_speeds(off)),
        first_token_ms=median_interval([a.statistics.first_token_ms for a in overlap]),
        ratio_to_rag=ratio_interval(samples[RAG], [a.total_s for a in overlap]),
    )


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a link."""
    columns = ("round trip, ms", "Mbit/s", "overlap ↑", "exact ↑", "overlap, end to end ↑", "over text RAG ↑", "late ↓")
    names = ("ratio_overlap", "ratio_exact", "ratio_end_to_end_overlap", "ratio_to_rag")
    rows = [
        (
            f"{r['rtt_ms']:g}",
            f"{r['bandwidth_mbit']:g}",
            *(figure(r, name) for name in names),
            f"{r['late_chunks']} of {r['chunks']}" + (f", {r['failed_chunks']} failed" if r["failed_chunks"] else ""),
        )
        for r in result["rows"]
    ]
    note = (
        f"{COUNTED} Late memories are read once they arrive. Text RAG uses the same runtime, retrieves once and goes"
        " through the same network: a proxy that adds delay and limits bandwidth."
    )
    return [Sheet(subject(result), columns, rows, note)]


SCENARIO = Scenario(
    name="network",
    summary="Decoding with memories over a network, relative to no memory, and whole answers against text RAG.",
    settings=NetworkSettings,
    measure=measure,
    sheets=sheets,
    quick={"rounds": 1, "rtt_ms": [0, 50, 200], "bandwidth_mbit": [100]},
)
