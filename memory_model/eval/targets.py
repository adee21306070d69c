"""What the default model's quality is judged by: each figure against what it must be and what we aim for."""

from __future__ import annotations

from dataclasses import dataclass

from memory_model.eval.results import EdgeQuality, Overlap, Quality

PAPER_BYTES, AIM_BYTES = 39_424, 20_160
"""Codes of one memory: the paper's model, and what a default model is to take."""
HELD_OUT, NATURAL, RETRIEVED, NATURAL_UNTUNED, PROSE = (
    "heldout",
    "natural",
    "retrieved",
    "natural_untuned",
    "prose",
)
EDGE, OVERLAP = "edge_quality", "overlap"
DEVICE_PRECISION = "int4-64-table-int8"
"""What `memory-model export` writes by default."""


@dataclass(frozen=True)
class Target:
    """A figure with its bars; value None was not measured. `higher`: whether more is better.

    whole: shown without decimals. of: the sections, or files, that the figure was made of.
    """

    what: str
    value: float | None
    must: float | None
    aim: float
    higher: bool = True
    whole: bool = False
    of: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """`aim reached`, `must reached`, `below the aim` (where nothing must be), `falls short`, `not measured`."""
        if self.value is None:
            return "not measured"
        if self._reaches(self.aim):
            return "aim reached"
        if self.must is None:
            return "below the aim"
        return "must reached" if self._reaches(self.must) else "falls short"

    def _reaches(self, bar: float) -> bool:
        assert self.value is not None
        return self.value >= bar - 1e-9 if self.higher else self.value <= bar + 1e-9

    def show(self, value: float | None) -> str:
        """A value of this target as text."""
        if value is None:
            return ""
        return f"{value:,.0f}" if self.whole else f"{value:.3f}"


def targets(
    quality: Quality, edge_quality: EdgeQuality | None = None, overlap: Overlap | None = None
) -> list[Target]:
    """The whole table, in the order in which the page has it."""

    def score(section: str, condition: str, name: str) -> float | None:
        found = quality.sections.get(section)
        value = found.conditions.get(condition, {}).get(name) if found else None
        return None if value is None else float(value)

    memory_f1, rag_f1 = score(HELD_OUT, "memory", "f1"), score(HELD_OUT, "rag", "f1")
    rag_exact = score(HELD_OUT, "rag", "exact_match")
    natural, natural_rag = score(NATURAL, "memory", "f1"), score(NATURAL, "rag", "f1")
    exact_f1 = score(HELD_OUT, "memory_exact", "f1")
    prose = quality.sections.get(PROSE)
    return [
        Target(
            "held-out countries: token F1 with memory", memory_f1, 0.93, _times(0.99, rag_f1, 0.99), of=(HELD_OUT,)
        ),
        Target(
            "held-out countries: exact match with memory", score(HELD_OUT, "memory", "exact_match"), 0.85,
            _times(0.99, rag_exact, 0.99), of=(HELD_OUT,),
        ),
        Target(
            "natural questions: F1 with memory / F1 with text", _ratio(natural, natural_rag), 0.6, 0.95, of=(NATURAL,)
        ),
        Target(
            "natural questions: right answer likelier than the wrong one (two-way)",
            score(NATURAL, "memory", "two_way"), 0.6, _times(0.95, score(NATURAL, "rag", "two_way"), 0.95),
            of=(NATURAL,),
        ),
        Target(
            "natural questions: F1 with text, tuned / untuned model",
            _ratio(natural_rag, score(NATURAL_UNTUNED, "rag", "f1")), None, 1.0, of=(NATURAL, NATURAL_UNTUNED),
        ),
        Target(
            "end to end: F1 with retrieved memories / F1 with the right one given",
            _ratio(score(RETRIEVED, "memory_retrieved", "f1"), memory_f1), 0.85, 0.97, of=(RETRIEVED, HELD_OUT),
        ),
        Target(
            "end to end: right reference among the five retrieved (recall@5)",
            score(RETRIEVED, "memory_retrieved", "recall_at_5"), 0.9, 0.98, of=(RETRIEVED,),
        ),
        *(
            Target(f"{p} decoder: F1 - F1 of float32", _lost(edge_quality, p), -0.02, -0.005, of=(EDGE,))
            for p in ("int8", DEVICE_PRECISION)
        ),
        Target(
            "the codec: F1 without it - F1 with it",
            None if exact_f1 is None or memory_f1 is None else exact_f1 - memory_f1, 0.02, 0.005, higher=False,
            of=(HELD_OUT,),
        ),
        Target(
            "overlap: F1 of exact - F1 of overlap", overlap.exact_f1 - overlap.overlap_f1 if overlap else None,
            0.02, 0.005, higher=False, of=(OVERLAP,),
        ),
        Target(
            "perplexity of prose without memory, tuned / original", prose.result.get("ratio") if prose else None,
            1.15, 1.02, higher=False, of=(PROSE,),
        ),
        Target("bytes of codes in a full memory", quality.memory_bytes, PAPER_BYTES, AIM_BYTES, False, True),
    ]  # fmt: skip


def _lost(edge: EdgeQuality | None, precision: str) -> float | None:
    if edge is None or not {precision, "float32"} <= set(edge.precisions):
        return None
    return edge.precisions[precision].f1 - edge.precisions["float32"].f1


def _ratio(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other


def _times(share: float, value: float | None, otherwise: float) -> float:
    return share * value if value is not None else otherwise
