"""docs/quality.md from the numbers under docs/data: `memory-model quality-report`.

`memory_model.eval.results` says what each file holds and which command writes it. Every file but
quality.json may be missing; its part of the page is then left out. A figure that was measured with another
model or codec than the page's is marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from memory_model.eval.results import EdgeQuality, Overlap, Quality, ResultFile, SectionResult
from memory_model.eval.targets import PROSE, Target, targets

_SECTIONS = {
    "heldout": "Countries held out of all tuning",
    "retrieved": "The same with nothing given: the question retrieves five memories",
    "hard": "The same with hard distractors: four other countries' references with the asked field",
    "natural": "Natural questions",
    "natural_untuned": "Natural questions, the untuned model",
    "counterfactual": "References that say what the world does not",
    "counterfactual_untuned": "The same, the untuned model",
    "unanswerable": "Questions that no memory answers",
}
_COLUMNS = {
    "nll": "NLL", "exact_match": "exact match", "f1": "F1", "exact_values": "exact values", "two_way": "two-way",
    "follows_memory": "says what the memory says", "says_belief": "says what the world says", "refused": "refused",
    "recall_at_5": "recall@5",
}  # fmt: skip
_FILES: dict[str, type[ResultFile]] = {
    "quality": Quality, "edge_quality": EdgeQuality, "overlap": Overlap,
}  # fmt: skip
_MARK = "†"


@dataclass(frozen=True)
class Numbers:
    """The content of docs/data; None where a file is missing."""

    quality: Quality
    edge_quality: EdgeQuality | None = None
    overlap: Overlap | None = None

    @classmethod
    def read(cls, folder: Path) -> Numbers:
        """Everything in `folder`; raises MissingFile without quality.json, CorruptFile for what is no such file."""
        paths = {field.name: folder / f"{field.name}.json" for field in fields(cls)}
        found: dict[str, Any] = {
            name: _FILES[name].load(path)
            for name, path in paths.items()
            if name == "quality" or path.is_file()
        }
        return cls(**found)

    def of_another(self, part: str) -> str:
        """What else than the page's model a section or a file was measured with; empty when it was that."""
        if part in self.quality.sections:
            return self.quality.of_another(part)
        found = getattr(self, part, None)
        model_id = getattr(found, "model_id", self.quality.model_id)
        return "" if model_id == self.quality.model_id else f"model {model_id[:12]}"


def page(numbers: Numbers) -> str:
    """The whole page."""
    quality = numbers.quality
    parts = [
        "# Quality\n\nMade by `memory-model quality-report` from the numbers under `docs/data`; do not edit.\n",
        f"Model `{quality.model}` ({quality.model_id[:12]}), codec {quality.codec_id[:12]}, "
        f"{quality.memory_bytes:,} bytes of codes in a full memory of {quality.memory_heads} heads.\n"
        f"Last measured with `{quality.command}` on {quality.date}: {quality.machine}.\n"
        "Greedy answers, five memories a question (the right one and four others) unless said otherwise.\n",
        "## Against the targets\n\n" + _target_table(numbers),
    ]
    if numbers.edge_quality or numbers.overlap:
        parts.append(_device_part(numbers))
    parts.append(_sections_part(quality))
    parts.append(_HOW)
    return "\n".join(parts)


def write_plots(numbers: Numbers, folder: Path) -> list[Path]:
    """Write the figures that the page shows into `folder` (docs/images); returns their paths."""
    from memory_model.eval import plots

    sections = numbers.quality.sections
    labels = {"heldout": "held-out countries", "hard": "hard distractors", "natural": "natural"}
    groups = [(label, _bars(sections, name)) for name, label in labels.items() if name in sections]
    path = folder / "quality-conditions.svg"
    plots.condition_bars(path, {"": groups})
    return [path]


def _bars(sections: Mapping[str, SectionResult], name: str) -> dict[str, dict[str, float]]:
    """Scores by condition of a section; those of retrieved memories stand with the held-out countries."""
    also = sections["retrieved"].conditions if name == "heldout" and "retrieved" in sections else {}
    return {**sections[name].conditions, **also}


def _target_table(numbers: Numbers) -> str:
    lines = ["| what | measured | must | aim | |", "|---|---|---|---|---|"]
    marked = False
    rows: Sequence[Target] = targets(numbers.quality, numbers.edge_quality, numbers.overlap)
    for row in rows:
        figure = row.show(row.value) or "–"
        if row.value is not None and any(numbers.of_another(part) for part in row.of):
            figure, marked = f"{figure} {_MARK}", True
        lines.append(
            f"| {row.what} | {figure} | {row.show(row.must)} | {row.show(row.aim)} | {row.verdict} |"
        )
    note = f"\n{_MARK} measured, at least in part, with another model or codec than this page's: see below.\n"
    return "\n".join(lines) + "\n" + (note if marked else "")


def _warning(numbers: Numbers, part: str) -> str:
    other = numbers.of_another(part)
    return f"**Measured with another {other}.** " if other else ""


def _device_part(numbers: Numbers) -> str:
    """What the device's own decoder answers: weights of fewer bits, and asking early."""
    parts = ["## On the device\n"]
    if edge := numbers.edge_quality:
        parts.append(
            f"{_warning(numbers, 'edge_quality')}{edge.rows} questions about held-out countries through the exported "
            f"decoder and its slots, {edge.date}:\n`python -m deploy.edge_quality`.\n"
        )
        parts.append("| weights | F1 | exact match | answers as the first's | MB |\n|---|---|---|---|---|")
        for name, found in edge.precisions.items():
            parts.append(
                f"| `{name}` | {found.f1:.3f} | {found.exact_match:.3f} | {found.same_as_first:.1%} | "
                f"{found.decoder_mb:.0f} |"
            )
        parts.append("")
    if overlap := numbers.overlap:
        alike = ""
        if overlap.generated_recalls == 0:
            alike = (
                "\nThese answers end within their first chunk, so nothing was recalled beside decoding: both modes did "
                "the same.\nWhat longer answers recall: [0014](decisions/0014-asking-early-and-never-waiting.md)."
            )
        parts.append(
            f"{_warning(numbers, 'overlap')}Asking early (`overlap`) against waiting (`exact`), over a real service: "
            f"F1 {overlap.overlap_f1:.3f} against {overlap.exact_f1:.3f},\n{overlap.rows} questions about held-out "
            f"countries, {overlap.date}: `python -m deploy.overlap_quality`.{alike}\n"
        )
    return "\n".join(parts)


def _sections_part(quality: Quality) -> str:
    lines = ["## Every measurement\n\n![token F1 by condition](images/quality-conditions.svg)\n"]
    for name, title in _SECTIONS.items():
        section = quality.sections.get(name)
        if section is None:
            continue
        found = section.conditions
        columns = [c for c in _COLUMNS if any(c in scores for scores in found.values())]
        lines.append(f"### {title}\n\n{section.result['rows']} rows, {_when(quality, name)}.\n")
        lines.append("| condition | " + " | ".join(_COLUMNS[c] for c in columns) + " |")
        lines.append("|---" * (1 + len(columns)) + "|")
        for condition, scores in found.items():
            cells = " | ".join(number(scores.get(c)) for c in columns)
            lines.append(f"| `{condition}` | {cells} |")
        lines.append("")
    if PROSE in quality.sections:
        prose = quality.sections[PROSE].result
        lines.append(
            f"### Prose without memory\n\nPerplexity {prose['tuned']:.2f} tuned, {prose['original']:.2f} original, "
            f"ratio {prose['ratio']:.3f}: {prose['windows']} windows of {prose['window_tokens']} tokens of "
            f"{prose['source']}, {_when(quality, PROSE)}.\n"
        )
    return "\n".join(lines)


def _when(quality: Quality, name: str) -> str:
    """The date of a section, and a warning where it is of another model or codec."""
    other = quality.of_another(name)
    return quality.sections[name].date + (f", **another {other}** {_MARK}" if other else "")


def number(value: float | None) -> str:
    """Three decimals, or nothing."""
    return "" if value is None else f"{value:.3f}"


_HOW = """\
## How to measure it again

```
make eval                                      # every measurement, resumable; LIMIT=n for a quick look
make eval NATURAL=questions.json               # natural questions too
memory-model quality --sections heldout,hard   # only these again; the others stay, each with its date and model
make edge-quality                              # the device's decoder with weights of fewer bits
make overlap-quality                           # asking early, over a real service
memory-model quality-report                    # this page and its figures
```

`exact values` is the share of the right answer's numbers and capitalised words that stand in the answer
letter for letter. `refused` counts answers that begin by saying that they do not know: right on
unanswerable questions, wrong elsewhere. `memory_retrieved` gives nothing: the question
itself searches all references of the factbook.

F1 against bytes, and what each step of tuning brought: [studies](studies.md). Which heads read:
[0002](decisions/0002-the-budget-is-a-table-of-heads.md).

Any task of EleutherAI's lm-evaluation-harness runs with and without memory: see
[the example](examples/harness/README.md).
"""
