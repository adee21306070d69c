"""The tables of docs/quality.md from the measured sections: `python -m docs.quality`, or `make quality`.

A target is reached only when the whole 95 % interval lies beyond its bar, and missed only when it lies short of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.answers.quality import PROSE, RETRIEVED, Measured, read_measured, write_measured
from memory3.errors import CorruptFile, InvalidInput
from memory_model.eval.scores import Mean, Paired

MEASURED, KEPT = Path("build/quality.jsonl"), Path("docs/data/quality.jsonl")
PAGE = Path("docs/quality.md")

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
DEVICE_PRECISION = "int4-64-table-int8"
"""What `memory-model export` writes by default."""
_ROWS = (
    ("facts", "f1", "facts: F1"),
    ("facts", "exact_match", "facts: exact"),
    ("same_field", "exact_match", "same field: exact"),
    ("records", "exact_match", "records: exact"),
    ("introductions", "f1", "introductions: F1"),
    ("halueval", "f1", "HaluEval: F1"),
    ("facts_retrieved", "f1", "facts, retrieved: F1"),
    ("same_field_retrieved", "exact_match", "same field, retrieved: exact"),
    ("introductions_retrieved", "f1", "introductions, retrieved: F1"),
    ("unanswerable", "refused", "unanswerable: refused"),
    ("records_unanswerable", "refused", "records, unanswerable: refused"),
    ("unanswerable_twins", "refused", "answerable twins: refused"),
    ("natural", "f1", "--natural: F1"),
)
_COLUMNS = (("memory", "memory_retrieved"), ("rag_five", "rag_retrieved"), ("rag",), ("none",))

_BINARY = frozenset({"exact_match", "refused", "refused_rightly", "refused_wrongly", "recall_at_5"})
"""Scores that are 0 or 1 on every row."""
_Z = 1.96  # of a 95 % interval


@dataclass(frozen=True)
class Bar:
    """What a figure of a test set must be and what we aim for.

    of: one condition, or two that are compared by the difference or the ratio of their means.
    """

    what: str
    section: str
    of: tuple[str, ...]
    score: str
    must: float
    aim: float
    higher: bool = True
    kind: Literal["mean", "difference", "ratio", "exponential"] = "mean"

    def value(self, sections: Mapping[str, Measured]) -> tuple[float, float, float] | None:
        """The figure and its 95 % interval, or None where it was not measured."""
        section = sections.get(self.section if "/" in self.section else f"{self.section}/test")
        if section is None:
            return None
        if self.kind == "mean":
            m = section.mean(self.of[0], self.score)
            return (m.mean, *interval(m, binary=self.score in _BINARY)) if m else None
        p = section.paired(self.of[0], self.of[1], self.score)
        if p is None or (self.kind == "ratio" and p.ratio is None):
            return None
        if self.kind == "ratio":
            return p.ratio or 0.0, p.low or 0.0, p.high or 0.0
        low, high = interval(p)
        if self.kind == "exponential":
            return math.exp(p.difference), math.exp(low), math.exp(high)
        return p.difference, low, high

    def verdict(self, low: float, high: float) -> str:
        """Of an interval: `aim reached`, `must reached`, `missed`, or `undecided` where it crosses the bar."""
        sign = 1 if self.higher else -1
        worst, best = sorted((sign * low, sign * high))
        if worst >= sign * self.must:
            return "aim reached" if worst >= sign * self.aim else "must reached"
        return "missed" if best < sign * self.must else "undecided"


TARGETS = (
    Bar("facts: F1", "facts", ("memory",), "f1", 0.95, 0.98),
    Bar("facts: exact", "facts", ("memory",), "exact_match", 0.92, 0.95),
    Bar("same field: exact", "same_field", ("memory",), "exact_match", 0.75, 0.95),
    Bar(
        "same field: exact, memory - the same five as text",
        "same_field",
        ("memory", "rag_five"),
        "exact_match",
        0,
        0,
        kind="difference",
    ),
    Bar("unanswerable: refused", "unanswerable", ("memory",), "refused", 0.6, 0.85),
    Bar("answerable twins: refused", "unanswerable_twins", ("memory",), "refused", 0.05, 0.03, higher=False),
    Bar(
        "introductions: F1, memory / the same five as text",
        "introductions",
        ("memory", "rag_five"),
        "f1",
        0.9,
        1.0,
        kind="ratio",
    ),
    Bar(
        "introductions: F1, memory / the right text alone",
        "introductions",
        ("memory", "rag"),
        "f1",
        0.75,
        0.95,
        kind="ratio",
    ),
    Bar(
        "introductions, retrieved: F1, memory / text",
        "introductions_retrieved",
        RETRIEVED,
        "f1",
        0.9,
        1.0,
        kind="ratio",
    ),
    Bar(
        "HaluEval (development): F1, memory / the same five as text",
        "halueval/dev",
        ("memory", "rag_five"),
        "f1",
        0.9,
        1.0,
        kind="ratio",
    ),
    Bar(
        "HaluEval (development): F1, memory / the right text alone",
        "halueval/dev",
        ("memory", "rag"),
        "f1",
        0.75,
        0.95,
        kind="ratio",
    ),
    Bar(
        "facts: F1 without the codec - F1 with it",
        "facts",
        ("memory_exact", "memory"),
        "f1",
        0.02,
        0.005,
        higher=False,
        kind="difference",
    ),
    Bar(
        "facts: F1 of the device's int4 weights - F1 of float32",
        "int4",
        (DEVICE_PRECISION, "float32"),
        "f1",
        -0.02,
        -0.005,
        kind="difference",
    ),
    Bar(
        "facts, answers below 64 tokens: F1 of recall `exact` - F1 of `overlap`",
        "overlap",
        ("exact", "overlap"),
        "f1",
        0.02,
        0.005,
        higher=False,
        kind="difference",
    ),
    Bar(
        "perplexity of prose, tuned / base",
        PROSE,
        ("tuned", "base"),
        "nll",
        1.15,
        1.02,
        higher=False,
        kind="exponential",
    ),
)
"""The bars of the page, in its order."""


def page(old: str, sections: Mapping[str, Measured]) -> str:
    """The page `old` with the part between its marks written anew.

    Raises InvalidInput for no sections, or sections of several models or evaluators; CorruptFile without the marks.
    """
    if not sections:
        raise InvalidInput("nothing was measured: run `python -m experiments quality` first")
    if len(identities(sections.values())) > 1:
        raise InvalidInput("the kept sections are of several models or evaluators: measure the old ones again")
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise CorruptFile(f"the page has no lines {BEGIN} and {END} to write between")
    one = next(iter(sections.values()))
    dates = sorted(s.date for s in sections.values())
    precision = " and ".join(sorted({str(s.key.get("precision", "float32")) for s in sections.values()}))
    size = next((f", {s.about['memory_bytes']:,} bytes per memory" for s in sections.values() if s.about), "")
    measured = (
        f"Model {one.key['model_id'][:12]}, codec {one.key['codec_id'][:12]}{size}; products in {precision}; "
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}.",
        "## Test sets",
        _table(sections, "test"),
        *(("## Development sets", _table(sections, "dev")) if any(s.part == "dev" for s in sections.values()) else ()),
        "## Targets",
        "*Must* is the required value, *aim* the goal. Each is reached or missed only if the whole 95 % interval is on"
        " one side of it.",
        "\n".join(_targets(sections)),
        "## Comparison with text",
        "\n".join(_meanings(sections)),
    )
    return f"{before}{BEGIN}\n" + "\n\n".join(measured) + f"\n\n{END}{after}"


def _table(sections: Mapping[str, Measured], part: str) -> str:
    lines = [
        "| questions: score | memory | the same five as text | the right text alone | no reference | n |",
        "|---|---|---|---|---|---|",
    ]
    for name, score, title in _ROWS:
        if found := sections.get(f"{name}/{part}"):
            cells = [next((m for c in names if (m := found.mean(c, score))), None) for names in _COLUMNS]
            shown = [f"{m.mean:.3f} ± {m.error:.3f}" if m else "" for m in cells]
            lines.append(f"| {title} | {' | '.join(shown)} | {found.rows} |")
    return "\n".join(lines)


def _targets(sections: Mapping[str, Measured]) -> Iterator[str]:
    yield "| measure | value | must | aim | result |\n|---|---|---|---|---|"
    for bar in TARGETS:
        sign, found = "≥" if bar.higher else "≤", bar.value(sections)
        shown, verdict = "", "not measured"
        if found:
            value, low, high = (round(figure, 9) + 0.0 for figure in found)  # no -0.000
            shown, verdict = f"{value:.3f} ({low:.3f} to {high:.3f})", bar.verdict(low, high)
        yield f"| {bar.what} | {shown} | {sign} {bar.must:g} | {sign} {bar.aim:g} | {verdict} |"


def _meanings(sections: Mapping[str, Measured]) -> Iterator[str]:
    """What the row-by-row comparisons of the test sets show."""
    shown: dict[str, list[str]] = {"Higher with memory": [], "Lower with memory": [], "No significant difference": []}
    for name, score, title in _ROWS:
        found = sections.get(f"{name}/test")
        for first, second in (("memory", "rag_five"), ("memory_retrieved", "rag_retrieved")):
            if score != "refused" and found and (p := found.paired(first, second, score)):
                low, high = interval(p)
                kind = list(shown)[0 if low > 0 else 1 if high < 0 else 2]
                shown[kind].append(f"{title} ({p.difference:+.3f} ± {p.error:.3f})")
    yield "Paired difference between memory and the same references as text:\n"
    for kind, titles in shown.items():
        if titles:
            yield f"- {kind}: {'; '.join(titles)}."


def interval(found: Mean | Paired, *, binary: bool = False) -> tuple[float, float]:
    """95 %: Wilson's for a share of rows (0 of 60 is not certainly 0), else mean or difference ± 1.96 errors."""
    middle = found.mean if isinstance(found, Mean) else found.difference
    if not binary:
        return middle - _Z * found.error, middle + _Z * found.error
    centre = middle + _Z**2 / (2 * found.n)
    half = _Z * (middle * (1 - middle) / found.n + _Z**2 / (4 * found.n**2)) ** 0.5
    return (centre - half) / (1 + _Z**2 / found.n), (centre + half) / (1 + _Z**2 / found.n)


def identities(sections: Iterable[Measured]) -> set[tuple[Any, ...]]:
    """Evaluators, models and codecs of sections: numbers of several do not stand on the same page."""
    return {tuple(s.key.get(name) for name in ("evaluator", "model_id", "codec_id")) for s in sections}


def taken_over(kept: Path, measured: Path) -> list[str]:
    """Keep every section of `measured` in `kept`; returns the names of those that are dropped there.

    Dropped is what another evaluator, model or codec gave than the new sections. Raises InvalidInput when these
    are of several.
    """
    new, old = read_measured(measured), read_measured(kept)
    if len(identities(new.values())) > 1:
        raise InvalidInput(f"{measured} has sections of several models: delete it and measure again")
    stale = [name for name, one in old.items() if new and identities([one]) != identities(new.values())]
    write_measured(kept, {name: one for name, one in old.items() if name not in stale} | new)
    return stale


def report(measured: Path = MEASURED, kept: Path = KEPT, out: Path = PAGE) -> None:
    """Keep what `python -m experiments quality` measured, and write the tables of the page."""
    if measured.is_file() and (dropped := taken_over(kept, measured)):
        print(f"dropped, of another model, codec or evaluator: {', '.join(dropped)}")
    out.write_text(page(out.read_text("utf-8"), read_measured(kept)), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    report()
