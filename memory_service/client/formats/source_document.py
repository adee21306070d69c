"""One document of a file, and how a record (a line or a row with named values) becomes one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_model.errors import MissingFile

_FIELDS = ("key", "title", "text", "metadata")


@dataclass(frozen=True)
class SourceDocument:
    """One document of a file. `number` counts from 0 in the file; `error` says why it is none, else it is empty.

    place: where in the file it is, such as "line 3"; empty where the file is the document.
    """

    source: Path
    number: int
    key: str
    title: str = ""
    text: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    error: str = ""
    place: str = ""

    @property
    def where(self) -> str:
        """For people: the file, the place in it, and the key where it is another name."""
        parts = [str(self.source), self.place, f"key {self.key}" if self.key != str(self.source) else ""]
        return ", ".join(part for part in parts if part)


def from_record(
    source: Path, number: int, place: str, values: object, *, others_are_metadata: bool = False
) -> SourceDocument:
    """The document of one record; a value that is missing or of a wrong type becomes its error.

    others_are_metadata: columns of other names belong to the metadata; otherwise they are mistakes.
    """
    try:
        key, title, text, metadata = _checked(values, others_are_metadata)
    except ValueError as error:
        return SourceDocument(source, number, str(source), error=str(error), place=place)
    return SourceDocument(source, number, key, title, text, metadata, place=place)


def _checked(values: object, others_are_metadata: bool) -> tuple[str, str, str, dict[str, str]]:
    if not isinstance(values, Mapping):
        raise ValueError("it is no JSON object")
    others = {name: value for name, value in values.items() if name not in _FIELDS}
    if others and not others_are_metadata:
        raise ValueError(f"unknown fields {', '.join(sorted(others))}; known: {', '.join(_FIELDS)}")
    key, text = values.get("key"), values.get("text")
    if not isinstance(key, str) or not isinstance(text, str):
        raise ValueError("`key` and `text` must be strings")
    title, metadata = values.get("title") or "", values.get("metadata") or {}
    if not isinstance(title, str) or not isinstance(metadata, Mapping):
        raise ValueError("`title` must be a string and `metadata` an object")
    named = {
        str(name): _as_text(value) for name, value in {**others, **metadata}.items() if value is not None
    }
    for part in (key, text, title, *named, *named.values()):
        part.encode()  # JSON can spell half a surrogate pair, UTF-8 and the wire cannot: UnicodeEncodeError
    return key, title, text, named


def _as_text(value: Any) -> str:
    """A metadata value as the string it is compared as: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def unreadable(error: Exception) -> str:
    """What is wrong with a file's bytes, for people."""
    if isinstance(error, UnicodeDecodeError):
        return f"not valid UTF-8 at byte {error.start}: convert the file"
    return str(error) or type(error).__name__


def imported(module: str) -> Any:
    """A library of the extra `formats`; raises MissingFile that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingFile(
            f"reading this kind of file needs {module.split('.')[0]}: pip install 'memory3-service[formats]'"
        ) from error
