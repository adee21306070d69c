"""Everything that is measured of a model's answers, section by section, into one file that can be resumed.

A section that was measured with the same key (model, codec, data, sizes) is kept; the file is replaced
after every section, so an interrupted run loses one section at most. Sections that are not asked for stay
as they are, each with its own key and date: after a new training only what is wanted is run again, and
the page says which sections are of another model.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_model.errors import CorruptFile
from memory_model.eval.conditions import Scores
from memory_model.eval.results import Quality, today, write_json
from memory_model.eval.rows import Row


@dataclass(frozen=True)
class Section:
    """One measurement. key: JSON-able, everything its result follows from; run: gives a JSON-able result."""

    name: str
    key: dict[str, Any]
    run: Callable[[], dict[str, Any]]


def run_sections(
    path: Path,
    sections: Sequence[Section],
    about: dict[str, Any],
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure what `path` has not got yet and return its content: `about` and `sections` by name.

    say: told the name of each section and whether it was kept. Raises CorruptFile when `path` is no such file.
    """
    result = {**about, "sections": _read(path) if path.is_file() else {}}
    for section in sections:
        key = json.loads(json.dumps(section.key))  # as it reads back: tuples are lists
        if result["sections"].get(section.name, {}).get("key") == key:
            say(f"{section.name}: kept from an earlier run")
            continue
        say(section.name)
        started = time.monotonic()
        measured = section.run()
        result["sections"][section.name] = {
            "key": key, "date": today(), "seconds": round(time.monotonic() - started, 1),
            "result": measured,
        }  # fmt: skip
        write_json(path, result)
    write_json(path, result)
    return result


def conditions_result(scores: dict[str, Scores], rows: Sequence[Row]) -> dict[str, Any]:
    """Rows, means by condition, and every answer, so that a figure can be looked into."""
    answers = [
        {
            "question": row.question,
            "right_answer": row.right_answer,
            **({"believed_answer": row.believed_answer} if row.believed_answer else {}),
            **{condition: found.answers[n] for condition, found in scores.items()},
        }
        for n, row in enumerate(rows)
    ]
    return {"rows": len(rows), "conditions": {c: s.summary() for c, s in scores.items()}, "answers": answers}


def scores_of_answers(
    rows: Sequence[Row], result: dict[str, Any], conditions: Sequence[str]
) -> dict[str, Scores] | None:
    """Scores of `rows` under `conditions` from the answers that a `conditions_result` kept.

    None unless it has all of these questions, first and in this order, under all of these conditions. Only what
    follows from an answer's text is scored: no likelihoods.
    """
    answers = result.get("answers", [])[: len(rows)]
    asked = [(a["question"], a["right_answer"]) for a in answers]
    if asked != [(r.question, r.right_answer) for r in rows] or any(
        c not in a for a in answers for c in conditions
    ):
        return None
    found = {condition: Scores() for condition in conditions}
    for row, answer in zip(rows, answers, strict=True):
        for condition, scores in found.items():
            scores.add(row, answer[condition])
    return found


def joined_results(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Results of the same questions under other conditions, as one."""
    answers = [
        {k: v for answer in row for k, v in answer.items()}
        for row in zip(*(r["answers"] for r in results), strict=True)
    ]
    conditions = {name: scores for r in results for name, scores in r["conditions"].items()}
    return {"rows": results[0]["rows"], "conditions": conditions, "answers": answers}


def without_answers(path: Path) -> Quality:
    """A file of `run_sections` without the answers: what is committed under docs/data. Raises CorruptFile."""
    sections = {
        name: {**s, "result": {k: v for k, v in s["result"].items() if k != "answers"}}
        for name, s in _read(path).items()
    }
    whole = json.loads(path.read_text(encoding="utf-8"))
    return Quality.of({**whole, "sections": sections}, path)


def retrieved_apart(sections: dict[str, Any]) -> dict[str, Any]:
    """Sections of an older file, in which the held-out questions' retrieved memories had no section of their own."""
    whole = sections.get("heldout", {})
    found = whole.get("result", {}).get("conditions", {})
    if "memory_retrieved" not in found or "retrieved" in sections:
        return dict(sections)
    key, searched = whole["key"], ("candidates", "order", "knowledge_base")

    def part(wanted: list[str], keys: dict[str, Any]) -> dict[str, Any]:
        left_out = set(found) - set(wanted)
        result = {**whole["result"], "conditions": {c: found[c] for c in wanted}}
        if "answers" in result:
            result["answers"] = [{k: v for k, v in a.items() if k not in left_out} for a in result["answers"]]
        return {**whole, "key": {**keys, "conditions": wanted}, "result": result}

    given = part(
        [c for c in found if c != "memory_retrieved"], {k: v for k, v in key.items() if k not in searched}
    )
    return {**sections, "heldout": given, "retrieved": part(["memory_retrieved"], key)}


def data_sha256(data: Any) -> str:
    """Short hash of parsed JSON, whatever its spacing."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def machine() -> str:
    """The machine in words: processor, cores, Python."""
    name = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        models = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _read(path: Path) -> dict[str, Any]:
    try:
        sections = json.loads(path.read_text(encoding="utf-8"))["sections"]
        if all("key" in s and "result" in s for s in sections.values()):
            return retrieved_apart(sections)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(
            f"{path} is not a file of `memory-model quality`: {error}; delete it or name another --out"
        ) from error
    raise CorruptFile(f"{path} has sections without key or result: delete it or name another --out")
