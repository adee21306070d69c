"""Records that do not exist, of many kinds: a ship, an invoice, a recipe, with the fields of `record_kinds.json`.

Countries alone teach the fields of countries. Kinds of the part "training" are tuned on; a model that reads those of
"dev" and "test" has learnt to tell fields and subjects apart, not these words.

A value or a title is one of the alternatives between bars; in braces stands a range of numbers, the name of a pool,
`name` for a new name, or alternatives again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.questions.paragraphs import DISTRACTORS, RowData, row_data
from memory3.text.refusal import SENTENCE
from memory_model.data import factbook
from memory_model.models.tensor_files import read_json

KINDS = Path(__file__).with_name("record_kinds.json")
_ALTERNATIVE = re.compile(r"\|(?![^{]*})")


def filled(template: str, pools: Mapping[str, str], rng: random.Random) -> str:
    """One way to fill a template."""

    def one(slot: re.Match[str]) -> str:
        if numbers := re.fullmatch(r"(\d+)-(\d+)", slot[1]):
            return str(rng.randint(int(numbers[1]), int(numbers[2])))
        if slot[1] == "name":
            syllables = (rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(1, 2)))
            return ("".join(syllables) + rng.choice(("bor", "den", "lin", "mar", "rix", "sol", "tan", "vek"))).title()
        return rng.choice(pools.get(slot[1], slot[1]).split("|"))

    return re.sub(r"{([^}]*)}", one, rng.choice(_ALTERNATIVE.split(template)))


def invented_records(part: str, count: int = 24) -> list[dict[str, Any]]:
    """Up to `count` documents of each kind of a part, in the form of `data/factbook.jsonl`."""
    found, rng, made = read_json(KINDS), random.Random(f"records {part}"), []
    for kind, of in found["kinds"].items():
        titles = {filled(of["titles"], found["pools"], rng) for _ in range(count)} if of["part"] == part else set()
        for title in sorted(titles):
            fields = of["fields"][:]
            if rng.random() < 0.5:
                rng.shuffle(fields)
            held = [f for f in fields if rng.random() > 0.1]
            lines = [f"{f}: {filled(found['values'][f], found['pools'], rng)}" for f in held]
            text, title = "\n".join(lines), title[0].upper() + title[1:]
            made.append({"key": f"{kind} {title}", "title": title, "text": text, "metadata": {"kind": kind}})
    return made


def record_rows(part: str, count: int = 150) -> list[RowData]:
    """Rows about the records of a part: four others of the kind hold the requested field; a third does not answer."""
    records, rng = invented_records(part, 40), random.Random(f"record rows {part}")
    rows: list[RowData] = []
    while len(rows) < count:
        record = rng.choice(records)
        question = rng.choice(rng.choice(factbook.questions(record["title"], record["text"])))
        field = question.field
        others = [
            f"{r['title']}\n{r['text']}"
            for r in records
            if r is not record
            and r["metadata"] == record["metadata"]
            and f"\n{field}: " in f"\n{r['text']}"
            and question.line not in r["text"]
        ]
        distractors, text = rng.sample(others, DISTRACTORS), f"{record['title']}\n{record['text']}"
        if len(rows) % 3 < 2:
            rows.append(row_data(text, question.question, question.answer, distractors))
        else:
            less = text.replace(f"\n{question.line}", "", 1)
            rows.append(row_data(less, question.question, SENTENCE, distractors) | {"answerable": False})
    return rows
