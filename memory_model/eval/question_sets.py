"""The committed question sets that try a memory's reader harder than random distractors do.

    heldout_hard     the four distractors hold the same field of other held-out countries
    unanswerable     five memories near the question, none of which answers it
    counterfactual   the reference says of a well-known country what is true of another

All are drawn from the factbook, fixed by a seed, and written by `python -m experiments build-factbook`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_model.data import factbook
from memory_model.data.questions import Question
from memory_model.eval.scores import REFUSAL, says
from memory_model.references import split

Document = dict[str, Any]
RowData = dict[str, Any]
_BESIDE = 4  # distractors of a row: with the knowledge, what a chunk reads

KNOWN = (
    "Argentina", "Australia", "Austria", "Brazil", "Canada", "Chile", "China", "Cuba", "Czech Republic", "Denmark",
    "Egypt", "Finland", "France", "Germany", "Greece", "Hungary", "India", "Iran", "Iraq", "Ireland", "Italy",
    "Japan", "Kenya", "Mexico", "Netherlands", "Norway", "Peru", "Poland", "Portugal", "South Korea", "Spain",
    "Sweden", "Switzerland", "Thailand", "United Kingdom", "United States", "Vietnam",
)  # fmt: skip
"""Countries of which a small model may be expected to believe something."""
BELIEVED_FIELDS = ("Capital - name", "Languages", "Location")
_AFTER_NAME = re.compile(r"\s*[(,;].*|\s+(\d|only\b).*")


@dataclass(frozen=True)
class Holder:
    """A reference, its country, and the fields whose facts it holds."""

    country: str
    text: str
    fields: dict[str, str]


def holders(documents: Sequence[Document], count_tokens: Callable[[str], int]) -> list[Holder]:
    """All references of the documents, as they are split for memories."""
    return [
        Holder(d["title"], text, {field: value for field, value, _ in factbook.facts(text)})
        for d in documents
        for text in split(d["text"], d["title"], count_tokens)
    ]


def write_question_sets(
    folder: Path, documents: Sequence[Document], count_tokens: Callable[[str], int]
) -> dict[str, int]:
    """Write the three files into `folder`; returns the number of rows of each."""
    every = holders(documents, count_tokens)
    titles = {d["title"] for d in documents if factbook.held_out(d["key"])}
    kept = [h for h in every if h.country in titles]
    sets = {
        "heldout_hard": hard_rows(kept, 100),
        "unanswerable": unanswerable_rows(kept, 60),
        "counterfactual": counterfactual_rows(every, 60),
    }
    for name, rows in sets.items():
        text = json.dumps(rows, ensure_ascii=False, indent=1) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return {name: len(rows) for name, rows in sets.items()}


def hard_rows(references: Sequence[Holder], count: int, seed: int = 0) -> list[RowData]:
    """Rows whose distractors hold the asked field of other countries, with other values."""
    rng = random.Random(f"hard {seed}")
    rows = []
    for holder, field, asked in _drawn(references, rng):
        others = _others(references, holder, field, rng)
        if len(others) < _BESIDE:
            continue
        rows.append(_row(holder.text, asked.question, asked.answer, [o.text for o in others[:_BESIDE]]))
        if len(rows) == count:
            break
    return rows


def unanswerable_rows(references: Sequence[Holder], count: int, seed: int = 0) -> list[RowData]:
    """Rows that nothing answers.

    Two references of the country without the field, two of others with it, and one with neither.
    """
    rng = random.Random(f"unanswerable {seed}")
    rows = []
    for holder, field, asked in _drawn(references, rng):
        own = [
            r.text for r in references
            if r.country == holder.country and field not in r.fields and not says(r.text, asked.answer)
        ]  # fmt: skip
        others = [r.text for r in _others(references, holder, field, rng)]
        far = [r.text for r in references if r.country != holder.country and field not in r.fields]
        if len(own) < 2 or len(others) < 2 or not far:
            continue
        texts = [*rng.sample(own, 2), *others[:2], rng.choice(far)]
        rng.shuffle(texts)
        rows.append(_row(texts[0], asked.question, REFUSAL, texts[1:]) | {"answerable": False})
        if len(rows) == count:
            break
    return rows


def counterfactual_rows(references: Sequence[Holder], count: int, seed: int = 0) -> list[RowData]:
    """Rows in which a well-known country has another one's capital, language or place.

    Other lines of the reference that name the true value are dropped, so that it does not contradict itself;
    the distractors are references of other countries that do not name it either.
    """
    rng = random.Random(f"counterfactual {seed}")
    share = -(-count // len(BELIEVED_FIELDS))
    rows = []
    for field in BELIEVED_FIELDS:
        known = [r for r in references if r.country in KNOWN and field in r.fields]
        rng.shuffle(known)
        for place, holder in enumerate(known[:share]):
            believed = _short(holder.fields[field])
            told = next((v for v in _values_from(known, place + 1, field) if not says(believed, v)), None)
            if told is None:  # all say the same
                continue
            question = factbook.questions(holder.country, f"{field}: {told}")[0][0].question
            distractors = [r.text for r in references if r.country not in KNOWN and believed not in r.text]
            text = _retold(holder, field, told, believed)
            rows.append(
                _row(text, question, told, rng.sample(distractors, _BESIDE)) | {"believed_answer": believed}
            )
    return rows[:count]


def _row(knowledge: str, question: str, answer: str, distractors: list[str]) -> RowData:
    return {
        "knowledge": knowledge, "question": question, "right_answer": answer, "distractors": distractors
    }  # fmt: skip


def _drawn(references: Sequence[Holder], rng: random.Random) -> Iterator[tuple[Holder, str, Question]]:
    """Every short fact once, in random order: its reference, its field, and one way to ask for it."""
    pool = [(r, ways) for r in references for ways in factbook.questions(r.country, r.text)]
    for holder, ways in rng.sample(pool, len(pool)):
        asked = rng.choice(ways)
        yield holder, asked.line.partition(": ")[0], asked


def _others(references: Sequence[Holder], holder: Holder, field: str, rng: random.Random) -> list[Holder]:
    """One reference of each other country that holds the field with another value, in random order."""
    found = {
        r.country: r for r in references
        if r.country != holder.country and r.fields.get(field, holder.fields[field]) != holder.fields[field]
    }  # fmt: skip
    return rng.sample(list(found.values()), len(found))


def _values_from(known: Sequence[Holder], start: int, field: str) -> Iterator[str]:
    for step in range(len(known)):
        yield _short(known[(start + step) % len(known)].fields[field])


def _short(value: str) -> str:
    """The name that a value begins with: no brackets, no share, nothing after a comma."""
    return _AFTER_NAME.sub("", value).strip()


def _retold(holder: Holder, field: str, told: str, believed: str) -> str:
    lines = []
    for line in holder.text.splitlines():
        if line.startswith(f"{field}: "):
            lines.append(f"{field}: {told}")
        elif line == holder.country or not says(line, believed):
            lines.append(line)
    return "\n".join(lines)
