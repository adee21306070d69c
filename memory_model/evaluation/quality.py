"""Everything that is measured of a model's answers, section by section, into one file that can be resumed.

A section that was measured with the same key (model, codec, data, sizes) is kept; the file is replaced
after every section, so an interrupted run loses one section at most.
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
from memory_model.evaluation.conditions import Scores
from memory_model.evaluation.rows import Row


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

    say: told the name of each section and whether it was kept. Sections that are not asked for now stay while
    their key's model_id is one of `about`'s (model_id, base_id). Raises CorruptFile when `path` is no such file.
    """
    kept = _read(path) if path.is_file() else {}
    result = {**about, "sections": {}}
    for name, section in kept.items():
        if section["key"].get("model_id") in (about.get("model_id"), about.get("base_id")):
            result["sections"][name] = section
    for section in sections:
        key = json.loads(json.dumps(section.key))  # as it reads back: tuples are lists
        if result["sections"].get(section.name, {}).get("key") == key:
            say(f"{section.name}: kept from an earlier run")
            continue
        say(section.name)
        started = time.monotonic()
        measured = section.run()
        result["sections"][section.name] = {
            "key": key, "date": time.strftime("%Y-%m-%d"), "seconds": round(time.monotonic() - started, 1),
            "result": measured,
        }  # fmt: skip
        _write(path, result)
    _write(path, result)
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


def without_answers(result: dict[str, Any]) -> dict[str, Any]:
    """The same file without the answers: what is committed under docs/data."""
    sections = {
        name: {**s, "result": {k: v for k, v in s["result"].items() if k != "answers"}}
        for name, s in result["sections"].items()
    }
    return {**result, "sections": sections}


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
            return dict(sections)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(
            f"{path} is not a file of `memory-model quality`: {error}; delete it or name another --out"
        ) from error
    raise CorruptFile(f"{path} has sections without key or result: delete it or name another --out")


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
