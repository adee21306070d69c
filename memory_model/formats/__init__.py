"""Files as documents: one reader for each kind of file, found by its suffix.

    records    JSON lines, CSV, Parquet: a document for each line or row
    pages      text, Markdown, HTML, PDF: a document for each file

A reader yields documents one at a time; what cannot be read comes as a failed one that says where, and nothing is
raised for it. Parquet, HTML and PDF need the extra `formats`.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from memory_model.errors import InvalidInput, MissingFile
from memory_model.formats import pages, records
from memory_model.formats.document import FileDocument as FileDocument  # what the readers yield

_READERS: dict[str, Callable[[Path], Iterator[FileDocument]]] = {
    ".jsonl": records.read_jsonl, ".ndjson": records.read_jsonl, ".csv": records.read_csv, ".tsv": records.read_csv,
    ".parquet": records.read_parquet, ".txt": pages.read_text, ".md": pages.read_markdown,
    ".markdown": pages.read_markdown, ".html": pages.read_html, ".htm": pages.read_html, ".pdf": pages.read_pdf,
}  # fmt: skip
_RECORDS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
SUFFIXES = tuple(_READERS)


def find_sources(paths: Sequence[Path]) -> list[Path]:
    """The files of `paths`: files, folders (all of a known kind in them, but nothing hidden) and patterns (`**/*.md`).

    Raises MissingFile and InvalidInput.
    """
    sources: list[Path] = []
    for path in paths:
        if path.is_dir():
            shown = (f for f in path.rglob("*") if not any(p.startswith(".") for p in f.relative_to(path).parts))
            found = sorted(shown)
            if not (files := _readable(found)):
                raise InvalidInput(f"{path} has no file of {', '.join(SUFFIXES)} in it")
            sources += files
        elif path.is_file():
            if not _readable([path]):
                raise InvalidInput(f"{path}: only {', '.join(SUFFIXES)} can be read; convert it")
            sources.append(path)
        elif glob.has_magic(str(path)):
            found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
            if not (files := _readable(found)):
                raise MissingFile(f"no file of {', '.join(SUFFIXES)} fits the pattern {path}")
            sources += files
        else:
            raise MissingFile(f"{path} does not exist")
    return list(dict.fromkeys(sources))


def _readable(files: Sequence[Path]) -> list[Path]:
    return [file for file in files if file.suffix.lower() in _READERS and file.is_file()]


def read_documents(source: Path, typed: Path | None = None) -> Iterator[FileDocument]:
    """The documents of one file, one at a time; a file that is the document is named as it was `typed`."""
    try:
        for document in _READERS[source.suffix.lower()](source):
            yield document.named(typed or source)
    except (OSError, MissingFile) as error:
        yield FileDocument.failed(typed or source, error)


def count_documents(source: Path) -> int:
    """How many documents a file has."""
    return sum(1 for _ in read_documents(source)) if source.suffix.lower() in _RECORDS else 1
