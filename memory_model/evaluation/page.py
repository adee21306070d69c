"""docs/quality.md from the numbers under docs/data: `memory-model quality-report`.

    quality.json       of `memory-model quality`, without the answers
    edge_quality.json  of `python -m deploy.edge_quality`: {precision: {f1, …}}
    overlap.json       {exact: F1, overlap: F1}
    ablation.json      [{name, steps, conditions: {condition: {f1, exact_match, …}}}]
    bytes_curve.json   [{label, bytes, f1, exact_match, tokens, heads, code_bytes, shipped}]
    heads.json         of `memory-model rank-heads`: {loss_with_all, ranking: [[layer, head, loss]], …}

Every file but the first may be missing; its part of the page is then left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_model.errors import CorruptFile, MissingFile
from memory_model.evaluation.targets import Target, targets

_SECTIONS = {
    "heldout": "Countries held out of all tuning",
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


@dataclass(frozen=True)
class Numbers:
    """The content of docs/data; None where a file is missing."""

    quality: dict[str, Any]
    edge_quality: dict[str, Any] | None = None
    overlap: dict[str, Any] | None = None
    ablation: list[dict[str, Any]] | None = None
    bytes_curve: list[dict[str, Any]] | None = None
    heads: dict[str, Any] | None = None

    @classmethod
    def read(cls, folder: Path) -> Numbers:
        """Everything in `folder`; raises MissingFile without quality.json, CorruptFile for what is no JSON."""
        found: dict[str, Any] = {}
        for name in cls.__dataclass_fields__:
            path = folder / f"{name}.json"
            if not path.is_file():
                continue
            try:
                found[name] = json.loads(path.read_text(encoding="utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise CorruptFile(f"{path} is not JSON: {error}") from error
        if "quality" not in found:
            raise MissingFile(
                f"no {folder / 'quality.json'}: measure with `make eval`, then `memory-model quality-report`"
            )
        return cls(**found)


def page(numbers: Numbers) -> str:
    """The whole page."""
    quality = numbers.quality
    parts = [
        "# Quality\n\nMade by `memory-model quality-report` from the numbers under `docs/data`; do not edit.\n",
        f"Model `{quality['model']}` ({quality['model_id'][:12]}), codec {quality['codec_id'][:12]}, "
        f"{quality['memory_bytes']:,} bytes of codes in a full memory of {quality['memory_heads']} heads.\n"
        f"Measured with `{quality['command']}` on {quality['date']}: {quality['machine']}.\n"
        "Greedy answers, five memories a question (the right one and four others) unless said otherwise.\n",
        "## Against the targets\n\n" + _target_table(
            targets(quality, numbers.edge_quality, numbers.overlap)
        ),
    ]  # fmt: skip
    if numbers.bytes_curve:
        parts.append(_bytes_part(numbers.bytes_curve))
    if numbers.ablation:
        parts.append(_ablation_part(numbers.ablation))
    parts.append(_sections_part(quality["sections"]))
    if numbers.heads:
        parts.append(
            "## Which heads read\n\nLoss of the answers that is added when one head's memory is left out, "
            f"over {numbers.heads['loss_with_all']:.3f} with all of them.\n\n"
            "![loss added without each head](images/quality-heads.svg)\n"
        )
    parts.append(_how_part())
    return "\n".join(parts)


def write_plots(numbers: Numbers, folder: Path) -> list[Path]:
    """Write the figures that the page shows into `folder` (docs/images); returns their paths."""
    from memory_model.evaluation import plots

    written = [folder / "quality-conditions.svg"]
    sections = numbers.quality["sections"]
    groups = [
        (label, sections[name]["result"]["conditions"])
        for name, label in (
            ("heldout", "held-out countries"),
            ("hard", "hard distractors"),
            ("natural", "natural"),
        )
        if name in sections
    ]
    plots.condition_bars(written[0], groups)
    if numbers.bytes_curve:
        written.append(folder / "quality-bytes.svg")
        plots.f1_against_bytes(written[-1], numbers.bytes_curve)
    if numbers.ablation:
        written.append(folder / "quality-ablation.svg")
        plots.condition_bars(written[-1], [(step["name"], step["conditions"]) for step in numbers.ablation])
    if numbers.heads:
        written.append(folder / "quality-heads.svg")
        plots.head_losses(written[-1], numbers.heads["ranking"], numbers.heads["loss_with_all"])
    return written


def _target_table(rows: Sequence[Target]) -> str:
    lines = ["| what | measured | must | aim | |", "|---|---|---|---|---|"]
    for row in rows:
        figure = row.show(row.value) or "–"
        lines.append(
            f"| {row.what} | {figure} | {row.show(row.must)} | {row.show(row.aim)} | {row.verdict} |"
        )
    return "\n".join(lines) + "\n"


def _bytes_part(points: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| setting | heads | tokens | bytes a vector | bytes a memory | F1 | exact match | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for p in sorted(points, key=lambda p: p["bytes"]):
        lines.append(
            f"| {p['label']} | {p.get('heads', '')} | {p.get('tokens', '')} | {p.get('code_bytes', '')} | "
            f"{p['bytes']:,} | {p['f1']:.3f} | {_number(p.get('exact_match'))} | {_shipped(p)} |"
        )
    return (
        "## F1 against bytes\n\n![token F1 against bytes of codes a memory](images/quality-bytes.svg)\n\n"
        + "\n".join(lines) + "\n"
    )  # fmt: skip


def _ablation_part(steps: Sequence[Mapping[str, Any]]) -> str:
    conditions = list(dict.fromkeys(c for step in steps for c in step["conditions"]))
    lines = [
        "| tuning | steps | " + " | ".join(f"{c}: F1, exact" for c in conditions) + " |",
        "|---" * (2 + len(conditions)) + "|",
    ]
    for step in steps:
        cells = []
        for c in conditions:
            found = step["conditions"].get(c, {})
            cells.append(
                f"{_number(found.get('f1'))}, {_number(found.get('exact_match'))}" if "f1" in found else ""
            )
        lines.append(f"| {step['name']} | {step.get('steps', '')} | " + " | ".join(cells) + " |")
    return (
        "## What each step of tuning brought\n\n![token F1 by step of tuning](images/quality-ablation.svg)\n\n"
        + "\n".join(lines) + "\n"
    )  # fmt: skip


def _sections_part(sections: Mapping[str, Any]) -> str:
    lines = ["## Every measurement\n\n![token F1 by condition](images/quality-conditions.svg)\n"]
    for name, title in _SECTIONS.items():
        if name not in sections:
            continue
        result = sections[name]["result"]
        found = result["conditions"]
        columns = [c for c in _COLUMNS if any(c in scores for scores in found.values())]
        lines.append(f"### {title}\n\n{result['rows']} rows, {sections[name]['date']}.\n")
        lines.append("| condition | " + " | ".join(_COLUMNS[c] for c in columns) + " |")
        lines.append("|---" * (1 + len(columns)) + "|")
        for condition, scores in found.items():
            cells = " | ".join(_number(scores.get(c)) for c in columns)
            lines.append(f"| `{condition}` | {cells} |")
        lines.append("")
    if "prose" in sections:
        prose = sections["prose"]["result"]
        lines.append(
            f"### Prose without memory\n\nPerplexity {prose['tuned']:.2f} tuned, {prose['original']:.2f} original, "
            f"ratio {prose['ratio']:.3f}: {prose['windows']} windows of {prose['window_tokens']} tokens of "
            f"{prose['source']}.\n"
        )
    return "\n".join(lines)


def _how_part() -> str:
    return (
        "## How to measure it again\n\n"
        "```\n"
        "make eval                                      # everything above, resumable; LIMIT=n for a quick look\n"
        "make eval NATURAL=questions.json               # natural questions too\n"
        "memory-model quality-report                    # this page and its figures\n"
        "```\n\n"
        "`exact values` is the share of the right answer's numbers and capitalised words that stand in the answer\n"
        "letter for letter. `refused` counts answers that begin by saying that they do not know: right on\n"
        "unanswerable questions, wrong elsewhere. `memory_retrieved` gives nothing: the question\n"
        "itself searches all references of the factbook.\n\n"
        "Any task of EleutherAI's lm-evaluation-harness runs with and without memory: see\n"
        "[the example](examples/harness/README.md).\n"
    )


def _shipped(point: Mapping[str, Any]) -> str:
    return "shipped" if point.get("shipped") else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
