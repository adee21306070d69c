"""The parts of docs/quality.md that are tables of curves: bytes, codecs, steps of tuning, each with its errors."""

from __future__ import annotations

from collections.abc import Mapping

from memory_model.eval.results import Ablation, BytesCurve, CodecCurve, Quality

_ERRORS = "±: standard error of the mean over the questions."


def bytes_part(curve: BytesCurve, warning: str) -> str:
    """F1 against bytes a memory; warning: what else than the page's model it was measured with, or nothing."""
    natural = curve.natural_rows and any(p.natural for p in curve.points)
    names = ["F1", "exact match"] + (["natural: F1", "natural: NLL"] if natural else [])
    lines = [
        f"| setting | heads | tokens | bytes a vector | bytes a memory | {' | '.join(names)} | |",
        "|---" * (6 + len(names)) + "|",
    ]
    for p in sorted(curve.points, key=lambda p: p.bytes):
        cells = [_with_error(p.f1, p.f1_error), f"{p.exact_match:.3f}"]
        if natural:
            found = p.natural or {}
            cells += [_with_error(found.get("f1"), found.get("f1_error")), number(found.get("nll"))]
        lines.append(
            f"| {p.label} | {p.heads} | {p.tokens} | {p.code_bytes:g} | {p.bytes:,} | {' | '.join(cells)} | "
            f"{'shipped' if p.shipped else ''} |"
        )
    people = f" and {curve.natural_rows} natural ones" if natural else ""
    return (
        "## F1 against bytes\n\n![token F1 against bytes of codes a memory](images/quality-bytes.svg)\n\n"
        f"{warning}{curve.rows} questions about held-out countries{people}, {curve.date}, five memories, the shipped "
        "weights\nthroughout, products in bfloat16. Other budgets than the shipped one are read as exact key-values "
        "and counted with\nthe codec's bytes a vector; the shipped point is read through the codec. "
        f"{_ERRORS}\n\n" + "\n".join(lines) + "\n"
    )  # fmt: skip


def codec_part(curve: CodecCurve, quality: Quality) -> str:
    """What codecs lose at their rates."""
    other = curve.settings.model_id
    warning = "" if other == quality.model_id else f"**Measured with another model {other[:12]}.** "
    lines = [
        "| codec | bytes a memory | keys lost | values lost | attention output lost | divergence | flips | F1 | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for p in sorted(curve.points, key=lambda p: p.divergence):
        lines.append(
            f"| `{p.name}` {p.title} | {p.memory_bytes:,} | {p.keys:.3%} | {p.values:.3%} | {p.output:.3%} | "
            f"{p.divergence:.5f} ± {p.divergence_error:.5f} | {p.flips:.2%} | {_scored(p.scores or {})} | "
            f"{'shipped' if p.name == curve.shipped else ''} |"
        )
    exact = curve.exact or {}
    answers = (
        f" Without a codec F1 is {_with_error(exact['f1'], exact.get('f1_error'))}: {curve.rows} questions about "
        f"held-out\ncountries. {_ERRORS}"
        if exact
        else ""
    )
    return (
        "## The codec: quality against rate\n\n![what codecs lose at their rates](images/codec-curve.svg)\n\n"
        f"{warning}Shares of variance; divergence in nats an answer token; flips: answer tokens whose likeliest token\n"
        f"changes. {curve.date}.{answers}\n\n" + "\n".join(lines) + "\n"
    )  # fmt: skip


def ablation_part(ablation: Ablation) -> str:
    """What each step of tuning brought."""
    columns = list(
        dict.fromkeys((kind, c) for step in ablation.steps for kind, found in step.scores.items() for c in found)
    )  # fmt: skip
    lines = [
        "| tuning | steps | tuned on | "
        + " | ".join(f"{kind}, `{c}`: F1, exact" for kind, c in columns)
        + " |",
        "|---" * (3 + len(columns)) + "|",
    ]
    for step in ablation.steps:
        cells = []
        for kind, condition in columns:
            found = step.scores.get(kind, {}).get(condition, {})
            cells.append(f"{_scored(found)}, {number(found.get('exact_match'))}" if found else "")
        lines.append(f"| {step.name} | {step.steps} | {step.tuned_on} | " + " | ".join(cells) + " |")
    days = sorted(step.date for step in ablation.steps)
    dates = " to ".join(dict.fromkeys((days[0], days[-1])))
    return (
        "## What each step of tuning brought\n\n![token F1 by step of tuning](images/quality-ablation.svg)\n\n"
        f"{ablation.rows} questions of each kind, five memories, without codec, {dates}. Products in bfloat16; in "
        f"float32\nwhere the answers were those of `quality` or `eval`. {_ERRORS}\n\n" + "\n".join(lines) + "\n"
    )  # fmt: skip


def _scored(scores: Mapping[str, float]) -> str:
    return _with_error(scores.get("f1"), scores.get("f1_error"))


def _with_error(value: float | None, error: float | None) -> str:
    return number(value) if value is None or error is None else f"{value:.3f} ± {error:.3f}"


def number(value: float | None) -> str:
    """Three decimals, or nothing."""
    return "" if value is None else f"{value:.3f}"
