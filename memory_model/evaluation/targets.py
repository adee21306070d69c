"""What the default model's quality is judged by: each figure against what it must be and what we aim for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PAPER_BYTES, AIM_BYTES = 39_424, 20_160
"""Codes of one memory: the paper's model, and what six heads with a third fewer bytes take."""


@dataclass(frozen=True)
class Target:
    """A figure with its bars; value None was not measured. `higher`: whether more is better."""

    what: str
    value: float | None
    must: float | None
    aim: float
    higher: bool = True
    whole: bool = False

    @property
    def verdict(self) -> str:
        """`aim reached`, `must reached`, `falls short` or `not measured`."""
        if self.value is None:
            return "not measured"
        if self._reaches(self.aim):
            return "aim reached"
        if self.must is None or self._reaches(self.must):
            return "must reached" if self.must is not None else "below the aim"
        return "falls short"

    def _reaches(self, bar: float) -> bool:
        assert self.value is not None
        return self.value >= bar - 1e-9 if self.higher else self.value <= bar + 1e-9

    def show(self, value: float | None) -> str:
        """A value of this target as text."""
        if value is None:
            return ""
        return f"{value:,.0f}" if self.whole else f"{value:.3f}"


def targets(
    quality: Mapping[str, Any], edge_quality: Mapping[str, Any] | None = None,
    overlap: Mapping[str, Any] | None = None,
) -> list[Target]:  # fmt: skip
    """The table, from the file of `memory-model quality`, of `deploy.edge_quality` and of an overlap run.

    overlap: {exact: F1, overlap: F1} of the same questions asked in both modes.
    """

    def score(section: str, condition: str, name: str) -> float | None:
        found = quality["sections"].get(section, {}).get("result", {}).get("conditions", {})
        value = found.get(condition, {}).get(name)
        return None if value is None else float(value)

    memory_f1, rag_f1 = score("heldout", "memory", "f1"), score("heldout", "rag", "f1")
    rag_exact = score("heldout", "rag", "exact_match")
    natural, natural_rag = score("natural", "memory", "f1"), score("natural", "rag", "f1")
    rows = [
        Target("held-out countries: token F1 with memory", memory_f1, 0.93, _times(0.99, rag_f1, 0.99)),
        Target(
            "held-out countries: exact match with memory", score("heldout", "memory", "exact_match"), 0.85,
            _times(0.99, rag_exact, 0.99),
        ),
        Target("natural questions: F1 with memory / F1 with text", _ratio(natural, natural_rag), 0.6, 0.95),
        Target(
            "natural questions: right answer likelier than the wrong one (two-way)",
            score("natural", "memory", "two_way"), 0.6, _times(0.95, score("natural", "rag", "two_way"), 0.95),
        ),
        Target(
            "natural questions: F1 with text, tuned / untuned model",
            _ratio(natural_rag, score("natural_untuned", "rag", "f1")), None, 1.0,
        ),
        Target(
            "end to end: F1 with retrieved memories / F1 with the right one given",
            _ratio(score("heldout", "memory_retrieved", "f1"), memory_f1), 0.85, 0.97,
        ),
        Target(
            "end to end: right reference among the five retrieved (recall@5)",
            score("heldout", "memory_retrieved", "recall_at_5"), 0.9, 0.98,
        ),
    ]  # fmt: skip
    for precision in ("int8", "int4"):
        lost = None
        if edge_quality and precision in edge_quality and "float32" in edge_quality:
            lost = edge_quality[precision]["f1"] - edge_quality["float32"]["f1"]
        rows.append(Target(f"{precision} decoder: F1 - F1 of float32", lost, -0.02, -0.005))
    exact = score("heldout", "memory_exact", "f1")
    codec = None if exact is None or memory_f1 is None else exact - memory_f1
    late = overlap["exact"] - overlap["overlap"] if overlap else None
    prose = quality["sections"].get("prose", {}).get("result", {}).get("ratio")
    return [
        *rows,
        Target("the codec: F1 without it - F1 with it", codec, 0.02, 0.005, higher=False),
        Target("overlap: F1 of exact - F1 of overlap", late, 0.02, 0.005, higher=False),
        Target("perplexity of prose without memory, tuned / original", prose, 1.15, 1.02, higher=False),
        Target(
            "bytes of codes in a full memory", quality.get("memory_bytes"), PAPER_BYTES, AIM_BYTES, False, True
        ),
    ]  # fmt: skip


def _ratio(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other


def _times(share: float, value: float | None, otherwise: float) -> float:
    return share * value if value is not None else otherwise
