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

from memory3.errors import InvalidInput, Memory3Error, MissingFile
from memory3.formats import pages, records
from memory3.formats.document import FileDocument as FileDocument  # what the readers yield

_READERS: dict[str, Callable[[Path], Iterator[FileDocument]]] = {
    ".jsonl": records.read_jsonl,
    ".ndjson": records.read_jsonl,
    ".csv": records.read_csv,
    ".tsv": records.read_csv,
    ".parquet": records.read_parquet,
    ".txt": pages.read_text,
    ".md": pages.read_markdown,
    ".markdown": pages.read_markdown,
    ".html": pages.read_html,
    ".htm": pages.read_html,
    ".pdf": pages.read_pdf,
}
_RECORDS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
SUFFIXES = tuple(_READERS)


def find_sources(paths: Sequence[Path]) -> list[Path]:
    """The files of `paths`: files, folders (all of a known kind in them, but nothing hidden) and patterns (`**/*.md`).

    Raises MissingFile and InvalidInput.
    """
    sources: list[Path] = []
    kinds = ", ".join(SUFFIXES)
    for path in paths:
        none: Memory3Error
        if path.is_dir():
            shown = (f for f in path.rglob("*") if not any(p.startswith(".") for p in f.relative_to(path).parts))
            found, none = sorted(shown), InvalidInput(f"{path} has no file of {kinds} in it")
        elif path.is_file():
            found, none = [path], InvalidInput(f"{path}: only {kinds} can be read; convert it")
        elif glob.has_magic(str(path)):
            found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
            none = MissingFile(f"no file of {kinds} fits the pattern {path}")
        else:
            raise MissingFile(f"{path} does not exist")
        readable = [file for file in found if file.suffix.lower() in _READERS and file.is_file()]
        if not readable:
            raise none
        sources += readable
    return list(dict.fromkeys(sources))


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
