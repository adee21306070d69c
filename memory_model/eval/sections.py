"""Which question sets `memory-model quality` asks, under which conditions, and how many questions of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from memory_model.errors import InvalidInput
from memory_model.eval.targets import PROSE

PROSE_WINDOWS = 40


@dataclass(frozen=True)
class Asked:
    """One section of questions. plain: asked of the model before any tuning."""

    name: str
    file: Path
    conditions: tuple[str, ...]
    rows: int
    plain: bool = False


_OWN = (
    Asked("heldout", Path("heldout_questions.json"), ("none", "memory", "memory_exact", "rag"), 100),
    Asked("retrieved", Path("heldout_questions.json"), ("memory_retrieved",), 100),
    Asked("hard", Path("heldout_hard.json"), ("memory", "rag"), 60),
    Asked("unanswerable", Path("unanswerable.json"), ("memory",), 60),
    Asked("counterfactual", Path("counterfactual.json"), ("memory", "rag"), 60),
    Asked("counterfactual_untuned", Path("counterfactual.json"), ("none", "rag"), 60, plain=True),
)  # fmt: skip
_NATURAL = (
    Asked("natural", Path(), ("none", "memory", "memory_exact", "rag"), 100),
    Asked("natural_untuned", Path(), ("none", "rag"), 100, plain=True),
)


def plan(
    data: Path, natural: Path | None, limit: int | None, only: tuple[str, ...] = ()
) -> tuple[list[Asked], int]:
    """(sections of questions, windows of prose); `only` names those to measure, none of them means all.

    data: folder of the committed sets. natural: a file of natural questions, or None to leave them out.
    limit: at most so many rows of each. Raises InvalidInput for a section that there is not.
    """
    sections = [replace(s, file=data / s.file) for s in _OWN]
    if natural is not None:
        sections += [replace(s, file=natural) for s in _NATURAL]
    names = [s.name for s in sections] + [PROSE]
    unknown = set(only) - set(names)
    if unknown:
        raise InvalidInput(f"no section {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    if limit is not None:
        sections = [replace(s, rows=min(limit, s.rows)) for s in sections]
    windows = PROSE_WINDOWS if limit is None else min(limit, PROSE_WINDOWS)
    wanted = only or tuple(names)
    return [s for s in sections if s.name in wanted], windows if PROSE in wanted else 0
