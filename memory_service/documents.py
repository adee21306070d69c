"""Files as documents: JSON lines ({key, title, text, metadata}), plain text and Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memory_model.errors import InvalidInput, MissingFile

SUFFIXES = (".jsonl", ".txt", ".md", ".markdown")

_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class SourceDocument:
    """One document of a file. `number` counts from 0 in the file; `error` says why it is none, else it is empty."""

    source: Path
    number: int
    key: str
    title: str = ""
    text: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    error: str = ""


def find_sources(paths: Sequence[Path]) -> list[Path]:
    """The files of `paths`; of a folder, all of a known kind in it. Raises MissingFile and InvalidInput."""
    sources = []
    for path in paths:
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix.lower() in SUFFIXES)
            if not found:
                raise InvalidInput(f"{path} has no file of {', '.join(SUFFIXES)} in it")
            sources += found
        elif not path.is_file():
            raise MissingFile(f"{path} does not exist")
        elif path.suffix.lower() not in SUFFIXES:
            raise InvalidInput(f"{path}: only {', '.join(SUFFIXES)} can be read; convert it to one of them")
        else:
            sources.append(path)
    return sources


def read_documents(source: Path) -> Iterator[SourceDocument]:
    """The documents of one file, one at a time; what cannot be read comes with an `error`, nothing is raised for it."""
    suffix = source.suffix.lower()
    if suffix == ".jsonl":
        yield from _read_jsonl(source)
        return
    key = str(source)
    try:
        text = source.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        yield SourceDocument(source, 0, key, error=_reason(error))
        return
    title = source.stem.replace("_", " ")
    if suffix != ".txt":
        title, text = _read_markdown(text, title)
    yield SourceDocument(source, 0, key, title, text)


def count_documents(source: Path) -> int:
    """How many documents a file has, without reading their text as such."""
    if source.suffix.lower() != ".jsonl":
        return 1
    with source.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _read_jsonl(source: Path) -> Iterator[SourceDocument]:
    with source.open("rb") as file:
        number = 0
        for line_number, line in enumerate(file, 1):
            if line.strip():
                yield _read_line(source, number, line_number, line)
                number += 1


def _read_line(source: Path, number: int, line_number: int, line: bytes) -> SourceDocument:
    place = f"{source}:{line_number}"
    try:
        values = json.loads(line.decode("utf-8"))
        if not isinstance(values, dict):
            raise ValueError("the line is no JSON object")
        if unknown := values.keys() - {"key", "title", "text", "metadata"}:
            raise ValueError(
                f"unknown fields {', '.join(sorted(unknown))}; known: key, title, text, metadata"
            )
        if not isinstance(values.get("key"), str) or not isinstance(values.get("text"), str):
            raise ValueError("`key` and `text` must be strings")
        if not isinstance(values.get("title", ""), str) or not isinstance(values.get("metadata", {}), dict):
            raise ValueError("`title` must be a string and `metadata` an object")
        strings = (values["key"], values["text"], values.get("title", ""))
        metadata = {name: _as_text(value) for name, value in values.get("metadata", {}).items()}
        for text in (*strings, *metadata, *metadata.values()):
            text.encode()  # JSON can spell half a surrogate pair, UTF-8 and the wire cannot
    except (ValueError, RecursionError) as error:
        return SourceDocument(source, number, place, error=f"line {line_number}: {_reason(error)}")
    return SourceDocument(source, number, values["key"], values.get("title", ""), values["text"], metadata)


def _as_text(value: object) -> str:
    """A metadata value as the string it is compared as: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _read_markdown(text: str, title: str) -> tuple[str, str]:
    """(title, text) of Markdown: the first heading is the title; links and heading marks lose their signs."""
    text = _FRONT_MATTER.sub("", text.replace("\r\n", "\n"))
    first = _HEADING.search(text)
    if first and not text[: first.start()].strip():
        title, text = first.group(1), text[first.end() :]
    return _LINK.sub(r"\1", title), _LINK.sub(r"\1", _HEADING.sub(r"\1.", text))


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not valid UTF-8 at byte {error.start}: convert the file"
    return str(error)
