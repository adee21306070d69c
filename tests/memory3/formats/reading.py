"""A file that holds one document, as tests of formats read it."""

from pathlib import Path

from memory3.formats import FileDocument, read_documents


def read(path: Path) -> FileDocument:
    """The only document of a file, which must be readable."""
    (document,) = read_documents(path)
    assert not document.unreadable, document.unreadable
    return document
