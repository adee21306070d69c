"""Files as documents: one reader for each kind of file, found by its suffix.

    records    JSON lines, CSV, Parquet: a document for each line or row
    pages      text, Markdown, HTML, PDF: a document for each file

A reader yields documents one at a time; what cannot be read comes as a document with an `error` that says where, and
nothing is raised for it. Parquet, HTML and PDF need the extra `formats`.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from memory_model.errors import InvalidInput, MissingFile
from memory_service.client.formats import pages, records
from memory_service.client.formats.records import SourceDocument

_JSONL, _CSV = (records.read_jsonl, records.count_jsonl), (records.read_csv, records.count_csv)
_MARKDOWN, _HTML = (pages.read_markdown, None), (pages.read_html, None)
_READERS: dict[str, tuple[Callable[[Path], Iterator[SourceDocument]], Callable[[Path], int] | None]] = {
    ".jsonl": _JSONL, ".ndjson": _JSONL, ".csv": _CSV, ".tsv": _CSV,
    ".parquet": (records.read_parquet, records.count_parquet), ".txt": (pages.read_text, None), ".md": _MARKDOWN,
    ".markdown": _MARKDOWN, ".html": _HTML, ".htm": _HTML, ".pdf": (pages.read_pdf, None),
}  # fmt: skip
SUFFIXES = tuple(_READERS)

__all__ = ["SUFFIXES", "SourceDocument", "count_documents", "find_sources", "read_documents"]


def find_sources(paths: Sequence[Path]) -> list[Path]:
    """The files of `paths`: files, folders (all of a known kind in them, but nothing hidden) and patterns (`**/*.md`).

    Raises MissingFile and InvalidInput.
    """
    sources: list[Path] = []
    for path in paths:
        if path.is_dir():
            sources += _of_folder(path)
        elif path.is_file():
            sources.append(_known(path))
        elif glob.has_magic(str(path)):
            found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
            if not (files := [p for p in found if p.is_file() and p.suffix.lower() in _READERS]):
                raise MissingFile(f"no file of {', '.join(SUFFIXES)} fits the pattern {path}")
            sources += files
        else:
            raise MissingFile(f"{path} does not exist")
    return list(dict.fromkeys(sources))


def _of_folder(folder: Path) -> list[Path]:
    found = sorted(
        path for path in folder.rglob("*")
        if path.suffix.lower() in _READERS and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )  # fmt: skip
    if not found:
        raise InvalidInput(f"{folder} has no file of {', '.join(SUFFIXES)} in it")
    return found


def _known(path: Path) -> Path:
    if path.suffix.lower() not in _READERS:
        raise InvalidInput(f"{path}: only {', '.join(SUFFIXES)} can be read; convert it to one of them")
    return path


def read_documents(source: Path) -> Iterator[SourceDocument]:
    """The documents of one file, one at a time; what cannot be read comes with an `error`."""
    try:
        yield from _READERS[source.suffix.lower()][0](source)
    except (OSError, MissingFile) as error:
        yield SourceDocument(source, 0, str(source), error=str(error))


def count_documents(source: Path) -> int:
    """How many documents a file has, without reading their text as such; 1 for one that cannot be read."""
    count = _READERS[source.suffix.lower()][1]
    try:
        return count(source) if count else 1
    except (OSError, MissingFile, ValueError):
        return 1
